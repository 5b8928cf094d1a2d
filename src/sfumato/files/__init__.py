"""The files people write: study files and what stands in them."""
