//! Runs reductions in the order that the plan fixes. Each lane of a piece combines its elements in
//! order. Then the lanes' totals are combined pairwise.

use crate::Reduction;
use crate::run::element::{Element, Elements};
use crate::run::memory::{AnyMemory, CHUNK, Refused, chunks, word};
use crate::threads::{BLOCK, VECTOR};

pub(super) fn rows<A: Element>(
    words: &[u64],
    op: Reduction,
    elements: Elements<A>,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    let [outer, n, chunk, _, lanes, out, input] = std::array::from_fn(|index| word(words, index));
    let (combine, chunk) = (A::combine(op), chunk.max(1));
    let mut lanes = vec![A::identity(op); lanes.clamp(1, u64::from(BLOCK)) as usize];
    let mut bytes = vec![0; (n.min(chunk) as usize).saturating_mul(elements.size)];
    let mut result = vec![0; A::SIZE];
    let mut to = out;
    for row in 0..outer {
        for first in pieces(n, chunk) {
            let count = chunk.min(n - first) as usize;
            let bytes = &mut bytes[..count * elements.size];
            memory.read(input.wrapping_add((row * n + first) * elements.size as u64), bytes)?;
            lanes.fill(A::identity(op));
            let width = lanes.len();
            for (vector, values) in bytes.chunks(VECTOR).enumerate() {
                let lane = &mut lanes[vector % width];
                for element in values.chunks_exact(elements.size) {
                    *lane = combine(*lane, (elements.load)(element));
                }
            }
            let mut half = width / 2;
            while half > 0 {
                for lane in 0..half {
                    lanes[lane] = combine(lanes[lane], lanes[lane + half]);
                }
                half /= 2;
            }
            lanes[0].store(&mut result);
            memory.write(to, &result)?;
            to = to.wrapping_add(A::SIZE as u64);
        }
    }
    Ok(())
}

pub(super) fn columns<A: Element>(
    words: &[u64],
    op: Reduction,
    elements: Elements<A>,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    let [outer, n, chunk, _, inner, out, input] = std::array::from_fn(|index| word(words, index));
    let (combine, chunk) = (A::combine(op), chunk.max(1));
    let mut bytes = vec![0; CHUNK * elements.size];
    let mut results = vec![0; CHUNK * A::SIZE];
    let pieces_of_n = n.div_ceil(chunk).max(1);
    for plane in 0..outer {
        for (piece, first) in pieces(n, chunk).enumerate() {
            let count = chunk.min(n - first);
            for (column, width) in chunks(inner) {
                let mut totals = vec![A::identity(op); width];
                // If several whole rows fit into a chunk, they are read together. Otherwise part of
                // one row is read.
                let most = if width as u64 == inner { (CHUNK / width) as u64 } else { 1 };
                let mut at = 0;
                while at < count {
                    let now = most.min(count - at);
                    let place = (plane * n + first + at) * inner + column;
                    let bytes = &mut bytes[..now as usize * width * elements.size];
                    memory.read(input.wrapping_add(place * elements.size as u64), bytes)?;
                    for row in bytes.chunks_exact(width * elements.size) {
                        for (total, element) in
                            totals.iter_mut().zip(row.chunks_exact(elements.size))
                        {
                            *total = combine(*total, (elements.load)(element));
                        }
                    }
                    at += now;
                }
                let results = &mut results[..width * A::SIZE];
                for (result, total) in results.chunks_exact_mut(A::SIZE).zip(totals) {
                    total.store(result);
                }
                let place = (plane * pieces_of_n + piece as u64) * inner + column;
                memory.write(out.wrapping_add(place * A::SIZE as u64), results)?;
            }
        }
    }
    Ok(())
}

/// Returns the index at which each piece of an axis starts. An empty axis has one piece.
fn pieces(n: u64, chunk: u64) -> impl Iterator<Item = u64> {
    (0..n.div_ceil(chunk).max(1)).map(move |piece| piece * chunk)
}
