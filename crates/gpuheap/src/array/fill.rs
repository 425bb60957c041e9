//! Filling arrays with one value.

use ndarray::Dimension;

use super::element::{Element, bytes_of};
use super::transfer::{is_read_later, wait_or_drain};
use super::{ArrayBase, ArrayData, ArrayDataMut};
use crate::error::Error;
use crate::stream::Stream;

impl<S: ArrayDataMut, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Sets every element to `value`, in stream order.
    ///
    /// # Errors
    ///
    /// The array was freed; a driver error.
    pub fn fill(&mut self, value: T) -> Result<(), Error> {
        fill(self, value)
    }
}

/// Fills an array that is new, or that is borrowed for writing.
pub(super) fn fill<S: ArrayData, T: Element, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    value: T,
) -> Result<(), Error> {
    let (count, bytes) = (array.len(), array.bytes());
    if bytes == 0 {
        return array.storage().use_on(None, |_, _| Ok(()));
    }
    let value = [value];
    array.storage().use_on(None, |address, stream| {
        let address = array.at(address);
        match *shortest_period(bytes_of(&value), address) {
            [byte] => stream.enqueue("cuMemsetD8Async", |driver| {
                // SAFETY: the array is `bytes` long, and the stream is alive.
                unsafe { driver.cuMemsetD8Async(address, byte, bytes as usize, stream.raw()) }
            }),
            [a, b] if address.is_multiple_of(2) => stream.enqueue("cuMemsetD16Async", |driver| {
                let value = u16::from_ne_bytes([a, b]);
                // SAFETY: the array is `bytes` long, a multiple of two, and the stream is alive.
                unsafe { driver.cuMemsetD16Async(address, value, bytes as usize / 2, stream.raw()) }
            }),
            [a, b, c, d] if address.is_multiple_of(4) => {
                stream.enqueue("cuMemsetD32Async", |driver| {
                    let value = u32::from_ne_bytes([a, b, c, d]);
                    // SAFETY: the array is `bytes` long, a multiple of four; the stream is alive.
                    unsafe {
                        driver.cuMemsetD32Async(address, value, bytes as usize / 4, stream.raw())
                    }
                })
            }
            ref pattern => fill_by_doubling(address, pattern, count, stream),
        }
    })
}

/// Returns the shortest pattern of 1, 2 or 4 bytes that repeats through `bytes`, or `bytes` if no
/// such pattern exists. The driver's fills support only these widths, and only at addresses that
/// are multiples of the width.
fn shortest_period(bytes: &[u8], address: u64) -> &[u8] {
    for period in [1, 2, 4] {
        if bytes.len().is_multiple_of(period)
            && address.is_multiple_of(period as u64)
            && bytes.chunks(period).all(|chunk| chunk == &bytes[..period])
        {
            return &bytes[..period];
        }
    }
    bytes
}

/// Uploads about 4 KiB of the pattern, then doubles the filled part by copies within the array. 24
/// copies fill 64 GiB.
fn fill_by_doubling(
    address: u64,
    pattern: &[u8],
    count: usize,
    stream: &Stream,
) -> Result<(), Error> {
    // Each copy below doubles the filled part of the array. The first part has about 4 KiB of
    // repeated patterns, so that the first copies are not tiny.
    let seed = pattern.repeat(count.min(4096 / pattern.len() + 1));
    let (total, mut done) = (pattern.len() * count, seed.len());
    stream.refuse_capturing()?;
    let later = is_read_later(&seed, stream)?;
    stream.enqueue("cuMemcpyHtoDAsync_v2", |driver| {
        // SAFETY: the array is at least as long as the seed. Either the driver reads the seed
        // before the call returns, or `later` is `true`, and the wait below keeps the seed alive.
        unsafe {
            driver.cuMemcpyHtoDAsync_v2(address, seed.as_ptr().cast(), seed.len(), stream.raw())
        }
    })?;
    if later {
        let (waited, settled) = wait_or_drain(stream);
        if !settled {
            // The driver may still read the seed, so the seed is never freed.
            std::mem::forget(seed);
        }
        waited?;
    }
    while done < total {
        let more = done.min(total - done);
        stream.enqueue("cuMemcpyDtoDAsync_v2", |driver| {
            // SAFETY: both ranges are in the array and do not overlap.
            unsafe {
                driver.cuMemcpyDtoDAsync_v2(address + done as u64, address, more, stream.raw())
            }
        })?;
        done += more;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_repeated_pattern_is_found() {
        let at = |address, bytes: &[u8]| shortest_period(bytes, address).len();
        let period = |bytes: &[u8]| at(256, bytes);
        assert_eq!(period(&[7, 7, 7, 7]), 1);
        assert_eq!(period(&[7, 8, 7, 8]), 2);
        assert_eq!(period(&[1, 2, 3, 4, 1, 2, 3, 4]), 4);
        assert_eq!(period(&[1, 2, 3, 4, 1, 2, 3, 5]), 8);
        assert_eq!(period(&[1, 2, 3]), 3);
        assert_eq!(period(&[0, 0, 0]), 1);
        assert_eq!((at(2, &[1, 2, 3, 4, 1, 2, 3, 4]), at(1, &[7, 8]), at(3, &[5, 5])), (8, 2, 1));
    }
}
