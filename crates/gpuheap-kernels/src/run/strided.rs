//! Reads, writes and copies strided elements, and copies rows by index.

use crate::access::axes;
use crate::axes::for_each_row;
use crate::run::element::Element;
use crate::run::memory::{AnyMemory, CHUNK, Refused, chunks, word};

/// Longest stride, in bytes, at which elements are read together with the bytes between them.
/// Memory is mapped in much larger pieces, so the bytes between two readable elements are readable
/// too.
const NEAR: u64 = 64;

/// Reads elements that are a stride apart, and stores them without gaps.
pub(super) fn gather(
    memory: &mut AnyMemory<'_>,
    address: u64,
    stride: i64,
    size: usize,
    into: &mut [u8],
) -> Result<(), Refused> {
    let count = into.len() / size;
    if stride == size as i64 || count == 0 {
        return memory.read(address, into);
    }
    if stride == 0 {
        let (first, rest) = into.split_at_mut(size);
        memory.read(address, first)?;
        rest.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(first));
        return Ok(());
    }
    if stride.unsigned_abs() <= NEAR {
        let step = stride.unsigned_abs() as usize;
        let mut span = vec![0; (count - 1) * step + size];
        let back = if stride < 0 { (count - 1) * step } else { 0 };
        memory.read(address.wrapping_sub(back as u64), &mut span)?;
        for (index, element) in into.chunks_exact_mut(size).enumerate() {
            let at = if stride < 0 { (count - 1 - index) * step } else { index * step };
            element.copy_from_slice(&span[at..][..size]);
        }
        return Ok(());
    }
    let mut at = address;
    for element in into.chunks_exact_mut(size) {
        memory.read(at, element)?;
        at = at.wrapping_add_signed(stride);
    }
    Ok(())
}

/// Writes adjacent elements to places a stride apart. Writes no bytes between the places.
fn scatter(
    memory: &mut AnyMemory<'_>,
    address: u64,
    stride: i64,
    size: usize,
    from: &[u8],
) -> Result<(), Refused> {
    if stride == size as i64 {
        return memory.write(address, from);
    }
    let mut at = address;
    for element in from.chunks_exact(size) {
        memory.write(at, element)?;
        at = at.wrapping_add_signed(stride);
    }
    Ok(())
}

pub(super) fn copy(words: &[u64], unit: usize, memory: &mut AnyMemory<'_>) -> Result<(), Refused> {
    let mut buffer = vec![0; CHUNK * unit];
    for_each_row(&axes(words), |row| {
        for (first, count) in chunks(row.length as u64) {
            let [to, from] = [0, 1].map(|i| {
                let offset = row.strides[i].wrapping_mul(first as i64);
                word(words, 3 + i).wrapping_add_signed(row.offsets[i].wrapping_add(offset))
            });
            let buffer = &mut buffer[..count * unit];
            gather(memory, from, row.strides[1], unit, buffer)?;
            scatter(memory, to, row.strides[0], unit, buffer)?;
        }
        Ok(())
    })
}

/// Copies rows that indices name.
pub(super) fn take(words: &[u64], unit: usize, memory: &mut AnyMemory<'_>) -> Result<(), Refused> {
    let [count, out, input, indices, rows] = std::array::from_fn(|index| word(words, index));
    let (mut buffer, mut named) = (vec![0; CHUNK * unit], vec![0; CHUNK * u32::SIZE]);
    for (first, count) in chunks(count) {
        let (buffer, named) = (&mut buffer[..count * unit], &mut named[..count * u32::SIZE]);
        memory.read(indices.wrapping_add(first * u32::SIZE as u64), named)?;
        for (row, index) in buffer.chunks_exact_mut(unit).zip(named.chunks_exact(u32::SIZE)) {
            match u64::from(u32::load(index)) {
                index if index < rows => {
                    memory.read(input.wrapping_add(index * unit as u64), row)?;
                }
                _ => row.fill(0),
            }
        }
        memory.write(out.wrapping_add(first * unit as u64), buffer)?;
    }
    Ok(())
}
