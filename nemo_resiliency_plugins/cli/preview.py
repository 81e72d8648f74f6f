def preview() -> None:
    """x"""
