"""The submit side: plugins for ``run.run(task, executor=..., plugins=[...])``."""
