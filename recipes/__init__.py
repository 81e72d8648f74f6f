"""Recipes: functions that return (task, executor, plugins), ready for ``run.run``, and the plugin sets they use."""
