"""Typed face of the Rust module; checked against the built module by stubtest."""

__all__ = ["__version__", "build_profile", "version"]

__version__: str

def version() -> str: ...
def build_profile() -> str: ...
