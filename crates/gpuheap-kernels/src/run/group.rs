//! Aggregates by key, in Rust.

use std::collections::BTreeMap;

use crate::run::element::{Element, Elements, Value, with_type};
use crate::run::memory::{AnyMemory, CHUNK, Refused, chunks, word};
use crate::{Fold, Type};

pub(super) fn group(
    words: &[u64],
    fold: Fold,
    of: Option<Type>,
    key: Type,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    match of {
        None => aggregate::<u64>(words, fold, None, key, memory),
        Some(of) => with_type!(fold.output(of), A => {
            let values = Elements::<A>::convert_from(of);
            aggregate(words, fold, Some((values, of)), key, memory)
        }),
    }
}

/// Aggregates the values of each group. If there are no values, counts the rows of each group.
fn aggregate<A: Element>(
    words: &[u64],
    fold: Fold,
    values: Option<(Elements<A>, Type)>,
    key: Type,
    memory: &mut AnyMemory<'_>,
) -> Result<(), Refused> {
    let [rows, inner, groups, out, input, keys, bad, valid, means, _, skips_nan] =
        std::array::from_fn(|index| word(words, index));
    let op = fold.reduction();
    let combine = A::combine(op);
    let skips_nan = skips_nan != 0 || matches!(fold, Fold::Min | Fold::Max);
    let mut totals: BTreeMap<u64, A> = BTreeMap::new();
    // If rows are counted, there are no values. `bytes` then has one unused byte for each row.
    let size = values.as_ref().map_or(1, |(values, _)| values.size);
    let (mut bytes, mut key_bytes) = (vec![0; CHUNK * size], vec![0; CHUNK * key.size()]);
    let mut valid_bytes = vec![0xff; CHUNK / 8];
    let (mut bad_rows, mut first_bad) = (0_u64, u64::MAX);
    for (first, count) in chunks(rows * inner) {
        let last = first + count as u64 - 1;
        let first_row = first / inner;
        let key_bytes = &mut key_bytes[..(last / inner - first_row + 1) as usize * key.size()];
        memory.read(keys.wrapping_add(first_row * key.size() as u64), key_bytes)?;
        if values.is_some() {
            let bytes = &mut bytes[..count * size];
            memory.read(input.wrapping_add(first * size as u64), bytes)?;
        }
        if valid != 0 {
            // The chunks begin at multiples of 8.
            memory.read(valid.wrapping_add(first / 8), &mut valid_bytes[..count.div_ceil(8)])?;
        }
        for (at, element) in bytes.chunks_exact(size).take(count).enumerate() {
            let index = first + at as u64;
            let (row, column) = (index / inner, index % inner);
            let place = (row - first_row) as usize * key.size();
            let key_bytes = &key_bytes[place..][..key.size()];
            let Some(group) = with_type!(key, K => find_group::<K>(key_bytes, groups)) else {
                if column == 0 {
                    bad_rows += 1;
                    first_bad = first_bad.min(row);
                }
                continue;
            };
            let is_nan = |of: Type| match of {
                Type::F32 => f32::load(element).is_nan(),
                Type::F64 => f64::load(element).is_nan(),
                _ => false,
            };
            let is_left_out = values.as_ref().is_some_and(|(_, of)| skips_nan && is_nan(*of));
            if is_left_out || valid_bytes[at / 8] >> (at % 8) & 1 == 0 {
                continue;
            }
            let slot = group * inner + column;
            let value = match &values {
                Some((values, _)) if fold == Fold::Squares => {
                    let mut mean = [0; 8];
                    memory.read(means.wrapping_add(slot * 8), &mut mean)?;
                    let value = f64::from_value((values.load)(element).value());
                    let distance = value - f64::load(&mean);
                    A::from_value(Value::Float(distance * distance))
                }
                Some((values, _)) if fold != Fold::Count => (values.load)(element),
                _ => A::from_value(Value::Integer(1)),
            };
            let total = totals.entry(slot).or_insert(A::identity(op));
            *total = combine(*total, value);
        }
    }
    let mut place = vec![0; A::SIZE];
    for (slot, total) in totals {
        let at = out.wrapping_add(slot * A::SIZE as u64);
        memory.read(at, &mut place)?;
        combine(A::load(&place), total).store(&mut place);
        memory.write(at, &place)?;
    }
    if bad_rows == 0 || bad == 0 {
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
