//! Records arrays for textures and surfaces. The driver does not report an array's size, so it is
//! computed from the shape.
#![allow(non_snake_case, reason = "named as in C")]

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_capture::MemoryKind;
use gpuheap_driver::{CUresult, CUstream};

use crate::allocate::Request;
use crate::layouts::{Array3DDescription, ArrayDescription};
use crate::real;
use crate::table::{In, Out};

pub(crate) fn cuArrayCreate_v2(
    array: Out<*mut c_void>,
    description: In<ArrayDescription>,
) -> CUresult {
    let bytes = description
        .get()
        .map_or(0, |shape| bytes_of([shape.width, shape.height, 1], shape.format, shape.channels));
    let request = Request::new(MemoryKind::Array, bytes, CUstream::NULL);
    request.run(array, || real::cuArrayCreate_v2(array, description))
}

pub(crate) fn cuArray3DCreate_v2(
    array: Out<*mut c_void>,
    description: In<Array3DDescription>,
) -> CUresult {
    let bytes = description.get().map_or(0, |shape| bytes_of_level(&shape, 0));
    let request = Request::new(MemoryKind::Array, bytes, CUstream::NULL);
    request.run(array, || real::cuArray3DCreate_v2(array, description))
}

pub(crate) fn cuMipmappedArrayCreate(
    array: Out<*mut c_void>,
    description: In<Array3DDescription>,
    levels: c_uint,
) -> CUresult {
    let bytes = description.get().map_or(0, |shape| {
        (0..levels.min(usize::BITS - 1))
            .fold(0, |sum: usize, level| sum.saturating_add(bytes_of_level(&shape, level)))
    });
    let request = Request::new(MemoryKind::Array, bytes, CUstream::NULL);
    request.run(array, || real::cuMipmappedArrayCreate(array, description, levels))
}

/// Returns the bytes of a level, whose sides are halved `level` times.
fn bytes_of_level(shape: &Array3DDescription, level: u32) -> usize {
    let half = |side: usize| if side == 0 { 0 } else { (side >> level).max(1) };
    // The depth of a layered array is its number of layers, and is not halved.
    let depth = if shape.flags & 1 != 0 { shape.depth } else { half(shape.depth) };
    bytes_of([half(shape.width), half(shape.height), depth], shape.format, shape.channels)
}

/// Returns the bytes of an array. A side of 0 means fewer dimensions, and counts as 1.
fn bytes_of(sides: [usize; 3], format: c_int, channels: c_uint) -> usize {
    let element = match format {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    };
    let elements = sides.iter().fold(1, |all: usize, side| all.saturating_mul(*side.max(&1)));
    elements.saturating_mul(element).saturating_mul(channels as usize)
}
