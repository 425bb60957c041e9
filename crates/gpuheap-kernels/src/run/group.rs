//! Sums by key.

use std::collections::BTreeMap;

use crate::run::element::{Element, Elements, Value, with_type};
use crate::run::memory::{AnyMemory, CHUNK, Refused, chunks, word};
use crate::{Reduction, Type};

pub(super) fn group(
    words: &[u64],
    of: Option<Type>,
    key: Type,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    match of {
        None => add_up::<u64>(words, None, key, memory),
        Some(of) => {
            let to = Reduction::Sum.output(of);
            with_type!(to, A => add_up(words, Some(Elements::<A>::convert_from(of)), key, memory))
        }
    }
}

/// Adds up the values of each group. If there are no values, counts the rows of each group.
fn add_up<A: Element>(
    words: &[u64],
    values: Option<Elements<A>>,
    key: Type,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    let [rows, inner, groups, out, input, keys, bad] =
        std::array::from_fn(|index| word(words, index));
    let combine = A::combine(Reduction::Sum);
    let one = A::from_value(Value::Integer(1));
    let mut sums: BTreeMap<u64, A> = BTreeMap::new();
    // If there are no values, nothing is read, and one byte stands for each element.
    let size = values.as_ref().map_or(1, |values| values.size);
    let mut bytes = vec![0; CHUNK * size];
    let mut key_bytes = vec![0; CHUNK * key.size()];
    let (mut bad_rows, mut first_bad) = (0_u64, u64::MAX);
    for (first, count) in chunks(rows) {
        let key_bytes = &mut key_bytes[..count * key.size()];
        memory.read(keys.wrapping_add(first * key.size() as u64), key_bytes)?;
        for (row, key_bytes) in (first..).zip(key_bytes.chunks_exact(key.size())) {
            let Some(group) = with_type!(key, K => find_group::<K>(key_bytes, groups)) else {
                bad_rows += 1;
                first_bad = first_bad.min(row);
                continue;
            };
            for (column, width) in chunks(inner) {
                let bytes = &mut bytes[..width * size];
                if values.is_some() {
                    let place = (row * inner + column) * size as u64;
                    memory.read(input.wrapping_add(place), bytes)?;
                }
                for (slot, element) in (group * inner + column..).zip(bytes.chunks_exact(size)) {
                    let value = values.as_ref().map_or(one, |values| (values.load)(element));
                    let sum = sums.entry(slot).or_insert(A::identity(Reduction::Sum));
                    *sum = combine(*sum, value);
                }
            }
        }
    }
    let mut place = vec![0; A::SIZE];
    for (slot, sum) in sums {
        let at = out.wrapping_add(slot * A::SIZE as u64);
        memory.read(at, &mut place)?;
        combine(A::load(&place), sum).store(&mut place);
        memory.write(at, &place)?;
    }
    if bad_rows == 0 {
        return Ok(());
    }
    let mut place = [0; 16];
    memory.read(bad, &mut place)?;
    let (number, first) = place.split_at_mut(8);
    u64::load(number).wrapping_add(bad_rows).store(number);
    u64::load(first).min(first_bad).store(first);
    memory.write(bad, &place)
}

/// Returns the group that a key names; `None` if the key is outside of `0..groups`.
fn find_group<K: Element>(key: &[u8], groups: u64) -> Option<u64> {
    match K::load(key).value() {
        Value::Integer(key) => u64::try_from(key).ok().filter(|key| *key < groups),
        Value::Float(_) => None,
    }
}
