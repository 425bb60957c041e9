//! Fills.

use gpuheap_driver::*;

use crate::Outcome;
use crate::api::copy::Shape;
use crate::emulator::Call;
use crate::state::access::{AccessKind, Is, Side};
use crate::state::stream::{FillWork, Work};

impl Call<'_> {
    pub(crate) fn cuMemsetD8_v2(
        &mut self,
        pointer: CUdeviceptr,
        value: u8,
        count: usize,
    ) -> Outcome {
        self.fill_row(pointer, word8(value), 1, count, None)
    }

    pub(crate) fn cuMemsetD16_v2(
        &mut self,
        pointer: CUdeviceptr,
        value: u16,
        count: usize,
    ) -> Outcome {
        self.fill_row(pointer, word16(value), 2, count, None)
    }

    pub(crate) fn cuMemsetD32_v2(
        &mut self,
        pointer: CUdeviceptr,
        value: u32,
        count: usize,
    ) -> Outcome {
        self.fill_row(pointer, value.to_ne_bytes(), 4, count, None)
    }

    pub(crate) fn cuMemsetD8Async(
        &mut self,
        pointer: CUdeviceptr,
        value: u8,
        count: usize,
        stream: CUstream,
    ) -> Outcome {
        self.fill_row(pointer, word8(value), 1, count, Some(stream))
    }

    pub(crate) fn cuMemsetD16Async(
        &mut self,
        pointer: CUdeviceptr,
        value: u16,
        count: usize,
        stream: CUstream,
    ) -> Outcome {
        self.fill_row(pointer, word16(value), 2, count, Some(stream))
    }

    pub(crate) fn cuMemsetD32Async(
        &mut self,
        pointer: CUdeviceptr,
        value: u32,
        count: usize,
        stream: CUstream,
    ) -> Outcome {
        self.fill_row(pointer, value.to_ne_bytes(), 4, count, Some(stream))
    }

    pub(crate) fn cuStreamWriteValue32_v2(
        &mut self,
        stream: CUstream,
        pointer: CUdeviceptr,
        value: u32,
        _flags: u32,
    ) -> Outcome {
        self.cuMemsetD32Async(pointer, value, 1, stream)
    }

    pub(crate) fn cuMemsetD2D8_v2(
        &mut self,
        pointer: CUdeviceptr,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
    ) -> Outcome {
        self.fill(pointer, pitch, word8(value), 1, (width, height), None)
    }

    pub(crate) fn cuMemsetD2D16_v2(
        &mut self,
        pointer: CUdeviceptr,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
    ) -> Outcome {
        self.fill(pointer, pitch, word16(value), 2, (width, height), None)
    }

    pub(crate) fn cuMemsetD2D32_v2(
        &mut self,
        pointer: CUdeviceptr,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
    ) -> Outcome {
        self.fill(pointer, pitch, value.to_ne_bytes(), 4, (width, height), None)
    }

    pub(crate) fn cuMemsetD2D8Async(
        &mut self,
        pointer: CUdeviceptr,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: CUstream,
    ) -> Outcome {
        self.fill(pointer, pitch, word8(value), 1, (width, height), Some(stream))
    }

    pub(crate) fn cuMemsetD2D16Async(
        &mut self,
        pointer: CUdeviceptr,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
        stream: CUstream,
    ) -> Outcome {
        self.fill(pointer, pitch, word16(value), 2, (width, height), Some(stream))
    }

    pub(crate) fn cuMemsetD2D32Async(
        &mut self,
        pointer: CUdeviceptr,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
        stream: CUstream,
    ) -> Outcome {
        self.fill(pointer, pitch, value.to_ne_bytes(), 4, (width, height), Some(stream))
    }

    fn fill_row(
        &mut self,
        pointer: u64,
        pattern: [u8; 4],
        element: u64,
        count: usize,
        stream: Option<CUstream>,
    ) -> Outcome {
        self.fill(pointer, 0, pattern, element, (count, 1), stream)
    }

    /// Fills a rectangle of elements of `size` bytes. The forms without a stream wait only if the
    /// target is host memory.
    fn fill(
        &mut self,
        pointer: u64,
        pitch: usize,
        pattern: [u8; 4],
        element: u64,
        size: (usize, usize),
        stream: Option<CUstream>,
    ) -> Outcome {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let index = self.stream(stream.unwrap_or(CUstream::NULL))?;
        let (height, pitch) = (size.1 as u64, pitch as u64);
        let width = (size.0 as u64).checked_mul(element).ok_or(invalid)?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        if !pointer.is_multiple_of(element)
            || !pitch.is_multiple_of(element)
            || height > 1 && pitch < width
        {
            return Err(invalid);
        }
        let shape = Shape { width, height };
        let side = self.settle_side(Side { address: pointer, is: Is::Device, pitch }, shape)?;
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

fn word8(value: u8) -> [u8; 4] {
    [value; 4]
}

fn word16(value: u16) -> [u8; 4] {
    let [a, b] = value.to_ne_bytes();
    [a, b, a, b]
}
