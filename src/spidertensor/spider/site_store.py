"""Where the sites of one member lie: in memory, or in a file without a name if they are many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spidertensor.unnamed_file import UnnamedFile

IN_MEMORY = 2**30  # bytes of sites; more of them go to a file
SPARE = 1.1  # room in a file of a part that had too little: what events need differs little between visits


class SiteStore:
    """The sites of each part, as one flat array, which may change its size.

    wanted: bytes that all of them are expected to take
    """

    def __init__(self, wanted: int, folder: str | None) -> None:
        self._file = UnnamedFile(folder, wanted) if wanted > IN_MEMORY else None
        self.clear()

    @property
    def in_file(self) -> bool:
        return self._file is not None

    def get(self, number: int) -> NDArray[np.uint16] | None:
        """The sites of a part; None before it was learned."""
        if self._file is not None and number in self._places:
            at, size, _ = self._places[number]
            return self._file.read(at, size, np.uint16)
        return self._arrays.get(number)

    def put(self, number: int, array: NDArray[np.uint16]) -> None:
        if self._file is None:
            self._arrays[number] = array
            return
        at, _, room = self._places.get(number, (0, 0, 0))
        if array.size > room:
            room = int(SPARE * array.size) if room else array.size
            at = self._file.reserve(room * array.itemsize)
        self._places[number] = at, array.size, room
        self._file.write(at, array)

    def clear(self) -> None:
        """Forget all sites. Room in a file is not used again, because this is rare."""
        self._arrays: dict[int, NDArray[np.uint16]] = {}
        self._places: dict[int, tuple[int, int, int]] = {}  # position in the file, numbers, room for numbers
