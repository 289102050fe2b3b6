"""Images (PTX, cubins, fat binaries) as loaded: once for the same content, device and entry."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from functools import lru_cache

from kernel_dsl import forking

from .device import Device, LoadedImage

_MAX_IMAGES = 256
_images_lock = forking.lock()
_images: OrderedDict[tuple[object, ...], LoadedImage] = OrderedDict()


def load_image(device: Device, image: bytes, entry: str) -> LoadedImage:
    """`entry` of an image on a device; loaded once for the same content, device and entry."""
    key = (device_key(device), _digest(image), entry)
    with _images_lock:
        found = _images.get(key)
        if found is None:
            found = _images[key] = device.load_image(image, entry)
            if len(_images) > _MAX_IMAGES:
                _images.popitem(last=False)
        else:
            _images.move_to_end(key)
    return found


@lru_cache(32)
def _digest(image: bytes) -> bytes:
    """A stand-in for an image's content. Bytes keep their hash, so the same object is read once."""
    return hashlib.sha256(image).digest()


def device_key(device: Device) -> tuple[object, ...]:
    """Equal for devices that can share a loaded image. One that checks launches has an owner, and shares none."""
    settings = getattr(device, "params", None)  # the interpreter's; a GPU has none
    return device.kind, device.index, repr(settings), getattr(device, "owner", None)
