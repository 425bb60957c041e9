//! Fills.

use super::prelude::*;
use crate::api::copy::Shape;
use crate::state::access::{AccessKind, Is, Side};
use crate::state::stream::{FillWork, Work};

/// Defines the four fills for one size of value. They fill a row or a rectangle, synchronously or
/// on a stream. The closure returns the value repeated to four bytes.
macro_rules! fills {
    ($($row:ident $row_async:ident $plane:ident $plane_async:ident: $pattern:expr;)*) => {
        impl Call<'_> {$(
            pub(crate) fn $row(&mut self, (pointer, value, count): args::$row) -> Outcome {
                self.fill(pointer, 0, $pattern(value), size_of_val(&value), (count, 1), None)
            }

            pub(crate) fn $row_async(
                &mut self,
                (pointer, value, count, stream): args::$row_async,
            ) -> Outcome {
                let (element, size) = (size_of_val(&value), (count, 1));
                self.fill(pointer, 0, $pattern(value), element, size, Some(stream))
            }

            pub(crate) fn $plane(
                &mut self,
                (pointer, pitch, value, width, height): args::$plane,
            ) -> Outcome {
                let (element, size) = (size_of_val(&value), (width, height));
                self.fill(pointer, pitch, $pattern(value), element, size, None)
            }

            pub(crate) fn $plane_async(
                &mut self,
                (pointer, pitch, value, width, height, stream): args::$plane_async,
            ) -> Outcome {
                let (element, size) = (size_of_val(&value), (width, height));
                self.fill(pointer, pitch, $pattern(value), element, size, Some(stream))
            }
        )*}
    };
}

fills! {
    cuMemsetD8_v2 cuMemsetD8Async cuMemsetD2D8_v2 cuMemsetD2D8Async: |value: u8| [value; 4];
    cuMemsetD16_v2 cuMemsetD16Async cuMemsetD2D16_v2 cuMemsetD2D16Async: |value: u16| {
        let [a, b] = value.to_ne_bytes();
        [a, b, a, b]
    };
    cuMemsetD32_v2 cuMemsetD32Async cuMemsetD2D32_v2 cuMemsetD2D32Async: u32::to_ne_bytes;
}

impl Call<'_> {
    pub(crate) fn cuStreamWriteValue32_v2(
        &mut self,
        (stream, pointer, value, _flags): args::cuStreamWriteValue32_v2,
    ) -> Outcome {
        self.cuMemsetD32Async((pointer, value, 1, stream))
    }

    /// Fills a rectangle of elements of `size` bytes. The calls without a stream wait only if the
    /// target is host memory.
    fn fill(
        &mut self,
        pointer: u64,
        pitch: usize,
        pattern: [u8; 4],
        element: usize,
        size: (usize, usize),
        stream: Option<CUstream>,
    ) -> Outcome {
        let index = self.stream(stream.unwrap_or(CUstream::NULL))?;
        let (height, pitch, element) = (size.1 as u64, pitch as u64, element as u64);
        let width = (size.0 as u64).checked_mul(element).ok_or(INVALID_VALUE)?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        if !pointer.is_multiple_of(element)
            || !pitch.is_multiple_of(element)
            || height > 1 && pitch < width
        {
            return Err(INVALID_VALUE);
        }
        let shape = Shape { width, height };
        let side = self.check_side(Side { address: pointer, is: Is::Device, pitch }, shape)?;
        // Unlike a kernel, a fill refuses memory that its device has no access to (two H200, driver
        // 580).
        let is_mapped = self.range_of(pointer).is_some();
        fail_if(is_mapped && !self.reaches(self.context_of(index), pointer), INVALID_VALUE)?;
        self.begin(index);
        for row in 0..height {
            self.note_access(index, pointer + row * pitch, width, AccessKind::Write);
        }
        let work = FillWork { target: pointer, pitch, width, height, pattern };
        let op = self.enqueue(index, Work::Fill(work), &[]);
        if stream.is_none() && side.is == Is::Host {
            self.complete(op);
            self.host_waits_for_stream(index);
        }
        self.alive(self.context_of(index))
    }
}
