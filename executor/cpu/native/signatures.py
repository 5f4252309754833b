"""What the C++ kernels take, as ctypes must know it.  The sources say what each argument means."""

from __future__ import annotations

import ctypes

_P, _N, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "lockgate_threads": (None, [_I]),
    "lockgate_linear_bf16": (None, [_P, _N, _N, _N, _P, _P, _P, _I]),
    "lockgate_linear_int4": (None, [_P, _N, _N, _N, _P, _P, _P, _I, _P]),
    "lockgate_amx_allowed": (_I, []),
    "lockgate_linear_amx": (None, [_P, _N, _N, _N, _P, _P, _P, _I]),
    "lockgate_linear_int8": (None, [_P, _N, _N, _N, _P, _P, _P, _I]),
    "lockgate_packed_bytes_int8": (_N, [_N, _N]),
    "lockgate_pack_int8": (None, [_P, _N, _N, _P]),
    "lockgate_packed_bytes_bf16": (_N, [_N, _N]),
    "lockgate_packed_bytes_int4": (_N, [_N, _N]),
    "lockgate_pack_bf16": (None, [_P, _N, _N, _P]),
    "lockgate_pack_int4": (None, [_P, _N, _N, _I, _P]),
    "lockgate_linear_column": (None, [_P, _N, _N, _N, _P, _P, _P, _I, _P]),
    "lockgate_linear_nibbles": (None, [_P, _N, _N, _N, _P, _P, _P, _I, _P]),
    "lockgate_rounded_bytes": (_N, [_N, _N]),
    "lockgate_packed_bytes_column": (_N, [_N, _N]),
    "lockgate_packed_bytes_nibbles": (_N, [_N, _N]),
    "lockgate_pack_column": (None, [_P, _N, _N, _P]),
    "lockgate_pack_nibbles": (None, [_P, _N, _N, _I, _P]),
    "lockgate_add_norm": (None, [_P, _P, _P, _P, _P, _N, _N, _F]),
    "lockgate_gate": (None, [_P, _P, _N, _N, _I]),
    "lockgate_sample": (None, [_P, _N, _N, _P, _P]),
    "lockgate_part_floats": (_N, [_N]),
    "lockgate_attend": (
        None,
        [
            _P,
            _P,
            _P,
            _N,
            _P,
            _P,
            _P,
            _P,
            _P,
            _N,
            _P,
            _N,
            _P,
            _N,
            _P,
            _N,
            _N,
            _N,
            _F,
            _N,
            _P,
            _P,
            _F,
        ],
    ),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
