"""Images of a conversation: where their bytes come from, decoding, and the pixels that a vision tower reads."""

from lucebox.images.processor import Processor
from lucebox.images.source import ImageSource, image_of, image_of_url

__all__ = ["ImageSource", "Processor", "image_of", "image_of_url"]
