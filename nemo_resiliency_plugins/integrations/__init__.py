"""One callback each for trainers of other libraries; what the session does, through their hooks."""
