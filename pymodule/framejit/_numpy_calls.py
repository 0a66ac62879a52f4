"""What some calls of NumPy mean, said by other calls. They are captured in place of NumPy's own (src/capture/numpy_calls.cc). NotImplemented:
this one has to be NumPy's own, which may raise."""


def broadcast_shapes(*shapes):
    sizes = []
    for shape in shapes:
        if type(shape) is int:
            shape = (shape,)
        if type(shape) is not tuple and type(shape) is not list or len(shape) > 32:
            return NotImplemented
        sizes[:0] = [1] * (len(shape) - len(sizes))
        for i in range(1, len(shape) + 1):
            size = shape[-i]
            if type(size) is not int or size < 0 or (sizes[-i] != 1 and size != 1 and size != sizes[-i]):
                return NotImplemented
            if sizes[-i] == 1:
                sizes[-i] = size
    return tuple(sizes)


def _in_columns(array, order):
    """Does `order` mean Fortran's for this array? None: it means neither."""
    if order == "C" or order == "F":
        return order == "F"
    if order == "A":
        return array.flags.fnc
    if order == "K":
        return False if array.flags.c_contiguous else True if array.flags.f_contiguous else None
    return None


def reshape(array, /, *shape, order):
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    columns = None if order == "K" else _in_columns(array, order)
    if columns is None:
        return NotImplemented
    if not columns:
        return array.reshape(shape)
    shaped = array.T.reshape(shape[::-1]).T
    # NumPy steps over sizes of 1 in another way where the array is neither row by row nor column by column.
    return NotImplemented if not array.flags.f_contiguous and 1 in shaped.shape else shaped


def reshape_function(a, /, shape, order):
    return reshape(a, shape, order=order)


def ravel(array, order):
    columns = _in_columns(array, order)
    return NotImplemented if columns is None else array.T.ravel() if columns else array.ravel()


def flatten(array, order):
    columns = _in_columns(array, order)
    return NotImplemented if columns is None else array.T.flatten() if columns else array.flatten()
