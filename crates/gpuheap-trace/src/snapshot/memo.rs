//! Implements a pickle's memo: opcodes store values in it, and later opcodes fetch them.

use rustc_hash::FxHashMap;

use super::value::Packed;

/// Values that the pickle stored, keyed by the pickle's index. A vector has the indices from 0 up,
/// as CPython writes them. A table has the other indices.
#[derive(Default)]
pub(super) struct Memo {
    dense: Vec<Packed>,
    /// Values with indices beyond `dense`.
    sparse: FxHashMap<u32, Packed>,
}

impl Memo {
    pub(super) fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    /// Returns the bytes held.
    pub(super) fn held(&self) -> usize {
        // Bytes that a value takes in the table, including its share of the empty slots.
        const SPARSE: usize = 24;
        size_of_val(&self.dense[..]) + self.sparse.len() * SPARSE
    }

    pub(super) fn get(&self, index: u32) -> Option<Packed> {
        let dense = self.dense.get(index as usize);
        dense.or_else(|| self.sparse.get(&index)).copied()
    }

    pub(super) fn set(&mut self, index: u32, value: Packed) {
        let dense = self.dense.len();
        match self.dense.get_mut(index as usize) {
            Some(known) => *known = value,
            None if index as usize == dense => {
                if !self.sparse.is_empty() {
                    self.sparse.remove(&index);
                }
                self.dense.push(value);
            }
            None => {
                self.sparse.insert(index, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::value::Value;

    proptest! {
        #[test]
        fn memo_matches_a_map(stored in prop::collection::vec((0_u32..12, 0_i64..9), 0..40)) {
            let (mut memo, mut map) = (Memo::default(), HashMap::new());
            for (index, value) in stored {
                let value = Packed::from(Value::Int(value));
                memo.set(index, value);
                map.insert(index, value);
                prop_assert_eq!(memo.len(), map.len());
                for index in 0..12 {
                    prop_assert_eq!(memo.get(index), map.get(&index).copied());
                }
            }
        }
    }
}
