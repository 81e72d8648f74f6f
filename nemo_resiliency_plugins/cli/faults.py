def faults() -> None:
    """x"""
