"""Imitates the functions of RMM that a recording replaces. RMM itself needs a GPU."""


class CallbackMemoryResource:
    def __init__(self, allocate_func, deallocate_func):
        self.allocate, self.deallocate = allocate_func, deallocate_func


_resources = {0: CallbackMemoryResource(None, None)}


def get_per_device_resource(device):
    return _resources[device]


def set_per_device_resource(device, mr):
    _resources[device] = mr


def get_current_device_resource():
    return _resources[0]


def set_current_device_resource(mr):
    _resources[0] = mr


def get_log_filenames():
    return dict.fromkeys(_resources)


def enable_logging():
    pass


def disable_logging():
    pass


def _initialize():
    _resources.clear()
    _resources[0] = CallbackMemoryResource(None, None)
