"""The kernel sources of lucebox, and what compiles and checks them: `source` is a part of the project's tree.
`lucebox tune --compile` runs source/ci/compile_kernels.py."""
