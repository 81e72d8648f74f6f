"""In-process restart: the train function starts again in the same process, under NVRx's ``inprocess.Wrapper``."""
