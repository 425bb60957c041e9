//! Gives access to the values of a pickle. Each error names the item in Python's notation.

use std::cell::Cell;
use std::fmt;

use super::entry::Entries;
use super::heap::{Heap, Items};
use super::shapes::KEYS;
use super::value::{Packed, Value};
use crate::{Error, Place};

const ADVICE: &str = "record again with torch.cuda.memory._dump_snapshot";

/// Maximum number of visits to values, in addition to one visit for each byte of the pickle. A
/// value that is in several lists may be visited several times.
const VISITS_AT_ONCE: u64 = 1_000_000;
/// Upper bound on the bytes that a trace keeps for each visited value. For an entry, a trace keeps
/// its event, its place and its address: about a hundred bytes. Reading an entry takes at least six
/// visits: one in its list, one for its dict and four for its keys.
const HELD_PER_VISIT: u64 = 16;

/// View of the values of a pickle.
pub(super) struct Plain<'h> {
    heap: &'h Heap,
    /// Number of items that may still be visited. Each item takes some bytes of the pickle, and
    /// shared items (frames and stacks) are visited once. So more visits than bytes mean that many
    /// lists contain the same list. Even a small file of this kind could take hours.
    visits_left: Cell<u64>,
    input_len: u64,
}

/// Place of a value.
#[derive(Clone, Copy)]
pub(super) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Top,
    Key(&'p str),
    Index(usize),
}

/// Key of a dict, and its value.
pub(super) struct Field<'p, 'h> {
    plain: &'p Plain<'h>,
    dict: &'p Path<'p>,
    key: &'static str,
    value: Option<Value>,
}

impl<'h> Plain<'h> {
    /// Makes a view of the pickle's values. Limits the number of visits to values, so that the
    /// traces made from the values take at most about `limit` bytes.
    pub(super) fn new(heap: &'h Heap, input_len: u64, limit: u64) -> Self {
        let visits = input_len.saturating_add(VISITS_AT_ONCE).min(limit / HELD_PER_VISIT);
        Self { heap, visits_left: Cell::new(visits), input_len }
    }

    pub(super) fn heap(&self) -> &'h Heap {
        self.heap
    }

    /// Returns the number of a dict's entry; `None` for values that are not stored as entries.
    pub(super) fn entry(&self, value: Value, path: &Path<'_>) -> Result<Option<u32>, Error> {
        let Value::Dict(dict) = value else { return Ok(None) };
        let Some(entry) = self.heap.entry(dict) else { return Ok(None) };
        self.visit(KEYS.len(), path)?;
        Ok(Some(entry))
    }

    /// Returns the place where a list's items are stored. Lists with equal places have equal items.
    pub(super) fn place(&self, value: Value) -> Option<Items> {
        let Value::List(number) = value else { return None };
        Some(self.heap.place(number))
    }

    /// Returns the items of a list.
    pub(super) fn list(&self, value: Value, path: &Path<'_>) -> Result<&'h [Packed], Error> {
        match value {
            Value::List(number) => {
                let items = self.heap.sequence(number);
                self.visit(items.len(), path)?;
                Ok(items)
            }
            other => Err(self.wrong_type(other, "a list", path)),
        }
    }

    /// Returns the fields of a dict for these keys.
    pub(super) fn fields<'p, const N: usize>(
        &'p self,
        value: Value,
        path: &'p Path<'p>,
        keys: [&'static str; N],
    ) -> Result<[Field<'p, 'h>; N], Error> {
        let values = self.values(value, path, &keys)?;
        Ok(std::array::from_fn(|at| Field {
            plain: self,
            dict: path,
            key: keys[at],
            value: values[at],
        }))
    }

    /// Returns the values of a dict for these keys.
    pub(super) fn values<const N: usize>(
        &self,
        value: Value,
        path: &Path<'_>,
        keys: &[&'static str; N],
    ) -> Result<[Option<Value>; N], Error> {
        let mut values = [None; N];
        for (key, value) in self.pairs(value, path)? {
            if let Some(index) = keys.iter().position(|wanted| wanted.as_bytes() == key) {
                values[index] = Some(value);
            }
        }
        Ok(values)
    }

    /// Returns an integer from 0 up.
    pub(super) fn number(&self, value: Value, path: &Path<'_>) -> Result<u64, Error> {
        self.heap
            .whole(value)
            .ok_or_else(|| self.wrong_type(value, "a whole number from 0 up to 2^64 - 1", path))
    }

    /// Returns a number, integer or float.
    pub(super) fn float(&self, value: Value, path: &Path<'_>) -> Result<f64, Error> {
        match value {
            Value::Float(number) => Ok(self.heap.float(number)),
            Value::Int(number) => Ok(number as f64),
            other => Err(self.wrong_type(other, "a number", path)),
        }
    }

    pub(super) fn truth(&self, value: Value, path: &Path<'_>) -> Result<bool, Error> {
        match value {
            Value::Bool(truth) => Ok(truth),
            other => Err(self.wrong_type(other, "True or False", path)),
        }
    }

    /// Returns the keys and values of a dict. Keys that are not strings are left out.
    pub(super) fn pairs(
        &self,
        value: Value,
        path: &Path<'_>,
    ) -> Result<impl Iterator<Item = (&'h [u8], Value)> + use<'h>, Error> {
        let Value::Dict(number) = value else {
            return Err(self.wrong_type(value, "a dict", path));
        };
        let heap = self.heap;
        let pairs = heap.dict(number);
        self.visit(pairs.len(), path)?;
        Ok(pairs.iter().filter_map(|[key, value]| match key.value() {
            Value::Text(key) => Some((heap.text(key), value.value())),
            _ => None,
        }))
    }

    /// Returns the items of a list or a tuple.
    pub(super) fn items(&self, value: Value, path: &Path<'_>) -> Result<&'h [Packed], Error> {
        match value {
            Value::List(number) | Value::Tuple(number) => {
                let items = self.heap.sequence(number);
                self.visit(items.len(), path)?;
                Ok(items)
            }
            other => Err(self.wrong_type(other, "a tuple", path)),
        }
    }

    /// Returns the string keys of a dict, up to a hundred; `None` if the value is not a dict.
    pub(super) fn keys(&self, value: Value, entries: &Entries) -> Option<Vec<&'h [u8]>> {
        const MOST: usize = 100;
        let Value::Dict(number) = value else { return None };
        let text = |key: &Packed| match key.value() {
            Value::Text(key) => Some(self.heap.text(key)),
            _ => None,
        };
        if let Some(entry) = self.heap.entry(number) {
            let keys = self.heap.entry_keys(entries.get(entry));
            return Some(keys.iter().filter_map(text).collect());
        }
        let keys = self.heap.dict(number).iter().take(MOST);
        Some(keys.filter_map(|[key, _]| text(key)).collect())
    }

    /// Returns the value of a key; `None` if `value` is not a dict with this key.
    pub(super) fn value(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Dict(number) = value else { return None };
        let is_key = |[found, _]: &&[Packed; 2]| match found.value() {
            Value::Text(found) => self.heap.text(found) == key.as_bytes(),
            _ => false,
        };
        self.heap.dict(number).iter().rfind(is_key).map(|[_, value]| value.value())
    }

    /// Returns the first item; `None` if `value` is not a list, or is empty.
    pub(super) fn first(&self, value: Value) -> Option<Value> {
        let Value::List(number) = value else { return None };
        self.heap.sequence(number).first().map(|first| first.value())
    }

    /// Returns the first item of the first list that is not empty; `None` if all lists are empty.
    pub(super) fn first_of_lists(&self, value: Value) -> Option<Value> {
        let Value::List(number) = value else { return None };
        self.heap.sequence(number).iter().find_map(|list| self.first(list.value()))
    }

    /// Returns a string, as UTF-8 bytes.
    pub(super) fn text(&self, value: Value, path: &Path<'_>) -> Result<&'h [u8], Error> {
        match value {
            Value::Text(number) => Ok(self.heap.text(number)),
            other => Err(self.wrong_type(other, "a string", path)),
        }
    }

    fn visit(&self, items: usize, path: &Path<'_>) -> Result<(), Error> {
        let left = self.visits_left.get().checked_sub(items as u64 + 1).ok_or_else(|| {
            Error::new(
                format!(
                    "the same items stand in far more places than {} bytes need",
                    self.input_len
                ),
                "this is no recording of an allocator; record again",
            )
            .at(path.place())
        })?;
        self.visits_left.set(left);
        Ok(())
    }

    fn wrong_type(&self, found: Value, wanted: &str, path: &Path<'_>) -> Error {
        Error::new(format!("is {} instead of {wanted}", self.heap.describe(found)), ADVICE)
            .at(path.place())
    }
}

impl<'p, 'h> Field<'p, 'h> {
    /// Makes the field `key` of the dict at the path `dict`. Without the key, `value` is `None`.
    pub(super) fn new(
        plain: &'p Plain<'h>,
        dict: &'p Path<'p>,
        key: &'static str,
        value: Option<Value>,
    ) -> Self {
        Self { plain, dict, key, value }
    }

    /// Returns the field's value. A missing key is an error.
    pub(super) fn required(&self) -> Result<Value, Error> {
        self.value.ok_or_else(|| {
            Error::new(format!("has no key \"{}\"", self.key), ADVICE).at(self.dict.place())
        })
    }

    /// Returns the result of `read`; `None` if the key is missing.
    pub(super) fn optional<T>(
        &self,
        read: impl FnOnce(&Plain<'h>, Value, &Path<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.value.map(|value| read(self.plain, value, &self.path())).transpose()
    }

    /// Returns the place of the value.
    pub(super) fn path(&self) -> Path<'_> {
        self.dict.key(self.key)
    }

    /// Returns the field's integer. A missing key is an error.
    pub(super) fn number(&self) -> Result<u64, Error> {
        self.plain.number(self.required()?, &self.path())
    }

    /// Returns the field's string. A missing key is an error.
    pub(super) fn text(&self) -> Result<&'h [u8], Error> {
        self.plain.text(self.required()?, &self.path())
    }

    /// Returns the items of the field's list. A missing key is an error.
    pub(super) fn list(&self) -> Result<&'h [Packed], Error> {
        self.plain.list(self.required()?, &self.path())
    }
}

impl<'p> Path<'p> {
    pub(super) const TOP: Path<'static> = Path { parent: None, step: Step::Top };

    pub(super) fn key(&'p self, key: &'p str) -> Path<'p> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    pub(super) fn index(&'p self, index: usize) -> Path<'p> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    pub(super) fn place(&self) -> Place {
        match self.step {
            Step::Top => Place::Item("the snapshot".into()),
            _ => Place::Item(self.to_string()),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Top => Ok(()),
            Step::Key(key) if self.parent.is_some_and(|parent| parent.parent.is_none()) => {
                f.write_str(key)
            }
            Step::Key(key) => write!(f, ".{key}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}
