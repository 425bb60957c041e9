//! Arithmetic, comparisons and casts, in Rust.

use crate::Type;
use crate::access::{element_axes, vector};
use crate::axes::{Axis, for_each_row};
use crate::kernel::{Does, Path, Source};
use crate::run::element::{Element, Elements, Flag, with_type};
use crate::run::memory::{AnyMemory, CHUNK, Refused, chunks, word};
use crate::run::strided::gather;

/// An operand with a buffer for its elements.
struct Buffered {
    source: Source,
    /// Address of the array, or bits of the scalar.
    word: u64,
    buffer: Vec<u8>,
}

impl Buffered {
    /// Creates an operand. A scalar is written into the whole buffer once.
    fn new(source: Source, word: u64, size: usize) -> Buffered {
        let mut buffer = vec![0; CHUNK * size];
        if source == Source::Scalar {
            let bits = word.to_le_bytes();
            buffer
                .chunks_exact_mut(size)
                .for_each(|element| element.copy_from_slice(&bits[..size]));
        }
        Buffered { source, word, buffer }
    }

    /// Reads the elements of one chunk into the buffer.
    fn fetch(
        &mut self,
        offset: i64,
        stride: i64,
        size: usize,
        count: usize,
        memory: &mut AnyMemory<'_>,
    ) -> Result<(), Refused> {
        if self.source == Source::Scalar {
            return Ok(());
        }
        let into = &mut self.buffer[..count * size];
        gather(memory, self.word.wrapping_add_signed(offset), stride, size, into)
    }
}

pub(super) fn elementwise(
    words: &[u64],
    path: Path,
    does: Does,
    of: Type,
    sources: [Source; 2],
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    let (size, out_size) = (of.size(), does.output(of).size());
    // `result` is the index in `words` of the result's address. The operands follow it.
    let (result, axes) = match path {
        Path::Flat => {
            (1, vec![Axis { length: word(words, 0) as usize, strides: [size as i64; 2] }])
        }
        _ => (2, element_axes(words, vector(path, of, does.output(of)))),
    };
    let operand = |i: usize| Buffered::new(sources[i], word(words, result + 1 + i), size);
    let mut operands = [0, 1].map(operand);
    let mut results = vec![0; CHUNK * out_size];
    let mut out = word(words, result);
    for_each_row(&axes, |row| {
        for (first, count) in chunks(row.length as u64) {
            for (operand, i) in operands.iter_mut().zip(0..) {
                let offset = row.strides[i].wrapping_mul(first as i64);
                let offset = row.offsets[i].wrapping_add(offset);
                operand.fetch(offset, row.strides[i], size, count, memory)?;
            }
            let results = &mut results[..count * out_size];
            compute(does, of, &operands, results);
            memory.write(out, results)?;
            out = out.wrapping_add(results.len() as u64);
        }
        Ok(())
    })
}

pub(super) fn cast(
    words: &[u64],
    from: Type,
    to: Type,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    let mut values = vec![0; CHUNK * from.size()];
    let mut results = vec![0; CHUNK * to.size()];
    for (first, count) in chunks(word(words, 0)) {
        let values = &mut values[..count * from.size()];
        memory.read(word(words, 2).wrapping_add(first * from.size() as u64), values)?;
        let results = &mut results[..count * to.size()];
        with_type!(to, T => cast_all(values, &Elements::<T>::convert_from(from), results));
        memory.write(word(words, 1).wrapping_add(first * to.size() as u64), results)?;
    }
    Ok(())
}

fn compute(does: Does, of: Type, operands: &[Buffered; 2], results: &mut [u8]) {
    let [left, right] = operands.each_ref().map(|operand| &operand.buffer[..]);
    match does {
        Does::Arithmetic(op) => {
            with_type!(of, T => zip::<T, T>(left, right, results, T::arithmetic(op)));
        }
        Does::Comparison(op) => {
            with_type!(of, T => {
                let compare = T::comparison(op);
                zip::<T, Flag>(left, right, results, |a, b| Flag(compare(a, b)))
            });
        }
    }
}

fn zip<T: Element, R: Element>(
    left: &[u8],
    right: &[u8],
    results: &mut [u8],
    f: impl Fn(T, T) -> R,
) {
    let pairs = left.chunks_exact(T::SIZE).zip(right.chunks_exact(T::SIZE));
    for (result, (left, right)) in results.chunks_exact_mut(R::SIZE).zip(pairs) {
        f(T::load(left), T::load(right)).store(result);
    }
}

fn cast_all<T: Element>(values: &[u8], elements: &Elements<T>, results: &mut [u8]) {
    for (result, value) in results.chunks_exact_mut(T::SIZE).zip(values.chunks_exact(elements.size))
    {
        (elements.load)(value).store(result);
    }
}
