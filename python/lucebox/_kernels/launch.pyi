"""Kernels and geometry of ops on any target."""

from collections.abc import Sequence


def choose(manifest_json: str, n_sms: int, op: str, capacity: int = 0, **fields) -> list[dict]:
    """
    The launches of an op, by its numbers as src/cpp/ops/operands.h names them; those not given are 0. `capacity`: of an attention's cache; the partials of its splits are held to the scratch, and its config is given as text.
    """

def choose_sampling(manifest_json: str, n_sms: int, op: str, size: int) -> dict:
    """The launch of sample, count_window or next_token."""

def choose_linear(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int = 1, activations: str = 'int8') -> list[dict]:
    """The launches of a group, one for each type in it."""

def choose_gemm(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int, activations: str = 'int8') -> dict:
    """
    The launches of a group of products with many rows, the bits its x is rounded to, its scratch memory; of one product that is not expanded also the config of its kernel, as text.
    """
