//! Containers and texts of a pickle's values. Values refer to them by index. Therefore a container
//! may be shared, it may contain itself, and dropping it does not recurse.
//!
//! Files have millions of containers. Most of them are filled in one step, and one vector holds all
//! their items. Equal lists and tuples share their items in that vector. A dict that describes an
//! event of a device becomes an [`Entry`].

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::{FxHashMap, FxHasher};

use super::entry::{Entries, Entry};
use super::shapes::Shapes;
use super::texts::Texts;
use super::value::{Packed, Value};
use crate::Error;
use crate::error::quote;
use crate::model::next_number;

/// Containers and texts that values refer to.
#[derive(Default)]
pub(super) struct Heap {
    /// Bits of the floats, and of the integers that are too large for a [`Packed`].
    wide: Vec<u64>,
    texts: Texts,
    containers: Vec<Items>,
    /// Items of the lists, tuples and dicts that were each filled by one opcode. The items of one
    /// container are contiguous.
    fixed: Vec<Packed>,
    /// Places of lists and tuples in `fixed`, keyed by the hash of their items.
    interned: FxHashMap<u64, Items>,
    /// Items of each container that several opcodes filled.
    growing: Vec<Vec<Packed>>,
    /// Bytes of the items in `growing`.
    growing_held: usize,
    shapes: Shapes,
    entries: Entries,
}

/// Range of a container's items in [`Heap::fixed`]. In a dict's items, keys and values alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Items {
    start: u32,
    len: u32,
}

impl Items {
    const EMPTY: Self = Self { start: 0, len: 0 };
    /// Value of `len` for a container in [`Heap::growing`]; `start` is its index.
    const GROWING: u32 = u32::MAX;
    /// Value of `len` for a dict that is stored as an [`Entry`]; `start` is the entry's number.
    const ENTRY: u32 = u32::MAX - 1;
}

/// Allocator overhead of each growing container, in bytes.
const ALLOCATION: usize = 32;
/// Bytes that an entry of a hash table takes, including its share of the empty slots.
const INTERNED: usize = 32;

impl Heap {
    /// Returns the bytes that the heap holds, without the spare capacity of its vectors.
    pub(super) fn held(&self) -> usize {
        size_of_val(&self.wide[..])
            + self.texts.held()
            + size_of_val(&self.containers[..])
            + size_of_val(&self.fixed[..])
            + self.interned.len() * INTERNED
            + self.growing_held
            + self.entries.held()
    }

    pub(super) fn add_int(&mut self, value: i64) -> Result<Value, Error> {
        if Packed::INTS.contains(&value) {
            return Ok(Value::Int(value));
        }
        self.add_wide(value.cast_unsigned()).map(Value::Long)
    }

    pub(super) fn add_unsigned(&mut self, value: u64) -> Result<Value, Error> {
        self.add_wide(value).map(Value::Unsigned)
    }

    pub(super) fn add_float(&mut self, value: f64) -> Result<Value, Error> {
        self.add_wide(value.to_bits()).map(Value::Float)
    }

    fn add_wide(&mut self, bits: u64) -> Result<u32, Error> {
        let number = next_number(self.wide.len())?;
        self.wide.push(bits);
        Ok(number)
    }

    pub(super) fn add_text(&mut self, text: &[u8]) -> Result<Value, Error> {
        self.texts.add(text).map(Value::Text)
    }

    pub(super) fn add_list(&mut self) -> Result<Value, Error> {
        self.add_container(Items::EMPTY).map(Value::List)
    }

    pub(super) fn add_tuple(&mut self, items: &[Packed]) -> Result<Value, Error> {
        let items = self.intern(items)?;
        self.add_container(items).map(Value::Tuple)
    }

    pub(super) fn add_dict(&mut self) -> Result<Value, Error> {
        self.add_container(Items::EMPTY).map(Value::Dict)
    }

    fn add_container(&mut self, items: Items) -> Result<u32, Error> {
        let number = next_number(self.containers.len())?;
        self.containers.push(items);
        Ok(number)
    }

    /// Returns the integer of a [`Value::Long`], signed and of more than 60 bits.
    pub(super) fn long(&self, number: u32) -> i64 {
        self.wide[number as usize].cast_signed()
    }

    /// Returns the integer of a [`Value::Unsigned`], from 2^63 to 2^64 - 1.
    pub(super) fn unsigned(&self, number: u32) -> u64 {
        self.wide[number as usize]
    }

    pub(super) fn float(&self, number: u32) -> f64 {
        f64::from_bits(self.wide[number as usize])
    }

    /// Returns the value as an integer from 0 to 2^64 - 1; `None` for any other value.
    pub(super) fn whole(&self, value: Value) -> Option<u64> {
        match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Long(number) => u64::try_from(self.long(number)).ok(),
            Value::Unsigned(number) => Some(self.unsigned(number)),
            _ => None,
        }
    }

    pub(super) fn text(&self, number: u32) -> &[u8] {
        self.texts.get(number)
    }

    /// Returns the items of a list or a tuple.
    pub(super) fn sequence(&self, number: u32) -> &[Packed] {
        self.items(self.containers[number as usize])
    }

    /// Returns keys and values in the order in which they were set. Of equal keys, the last key
    /// counts. Returns nothing for a dict that is stored as an [`Entry`].
    pub(super) fn dict(&self, number: u32) -> &[[Packed; 2]] {
        self.items(self.containers[number as usize]).as_chunks().0
    }

    /// Returns the number of a dict's [`Entry`]; `None` if the dict is not stored as an entry.
    pub(super) fn entry(&self, dict: u32) -> Option<u32> {
        let items = self.containers[dict as usize];
        (items.len == Items::ENTRY).then_some(items.start)
    }

    pub(super) fn entry_keys(&self, entry: &Entry) -> &[Packed] {
        self.shapes.keys(entry.shape)
    }

    /// Returns the place where a list's items are stored. Lists with equal places have equal items.
    pub(super) fn place(&self, list: u32) -> Items {
        self.containers[list as usize]
    }

    pub(super) fn take_entries(&mut self) -> Entries {
        std::mem::take(&mut self.entries)
    }

    pub(super) fn extend_list(&mut self, number: u32, items: &[Packed]) -> Result<(), Error> {
        if self.containers[number as usize] == Items::EMPTY {
            self.containers[number as usize] = self.intern(items)?;
            return Ok(());
        }
        self.grow(number, items)
    }

    /// Sets keys and values. They alternate in `items`. Returns `None` and sets nothing if the dict
    /// is already stored as an [`Entry`], because an entry cannot get more keys.
    pub(super) fn set_items(&mut self, dict: u32, items: &[Packed]) -> Result<Option<()>, Error> {
        if self.containers[dict as usize] == Items::EMPTY
            && let Some(entry) = self.entry_of(items)
        {
            let start = self.entries.add(entry)?;
            self.containers[dict as usize] = Items { start, len: Items::ENTRY };
            return Ok(Some(()));
        }
        self.extend_dict(dict, items)
    }

    /// Sets one key, like [`set_items`](Self::set_items). Never stores the dict as an [`Entry`],
    /// because later calls may add further keys.
    pub(super) fn set_item(
        &mut self,
        dict: u32,
        key: Packed,
        value: Packed,
    ) -> Result<Option<()>, Error> {
        self.extend_dict(dict, &[key, value])
    }

    fn extend_dict(&mut self, dict: u32, items: &[Packed]) -> Result<Option<()>, Error> {
        match self.containers[dict as usize] {
            Items { len: Items::ENTRY, .. } => return Ok(None),
            Items::EMPTY => self.containers[dict as usize] = self.add_items(items)?,
            _ => self.grow(dict, items)?,
        }
        Ok(Some(()))
    }

    /// Returns the [`Entry`] (an event of a device) that a dict describes. `items` are the dict's
    /// keys and values. `None` if the dict describes no event.
    fn entry_of(&mut self, items: &[Packed]) -> Option<Entry> {
        let (shape, fields) = self.shapes.fields(items, &self.texts)?;
        let mut entries = std::mem::take(&mut self.entries);
        let entry = entries.read(self, &fields).map(|entry| Entry { shape, ..entry });
        self.entries = entries;
        entry
    }

    /// Adds items to a container that already has items.
    fn grow(&mut self, number: u32, more: &[Packed]) -> Result<(), Error> {
        let items = self.containers[number as usize];
        if items.len != Items::GROWING {
            let start = next_number(self.growing.len())?;
            let first = self.items(items).to_vec();
            self.growing_held += size_of_val(&first[..]) + size_of::<Vec<Packed>>() + ALLOCATION;
            self.growing.push(first);
            self.containers[number as usize] = Items { start, len: Items::GROWING };
        }
        let at = self.containers[number as usize].start as usize;
        self.growing_held += size_of_val(more);
        self.growing[at].extend_from_slice(more);
        Ok(())
    }

    fn intern(&mut self, items: &[Packed]) -> Result<Items, Error> {
        if items.is_empty() {
            return Ok(Items::EMPTY);
        }
        let hash = BuildHasherDefault::<FxHasher>::default().hash_one(items);
        if let Some(&known) = self.interned.get(&hash)
            && self.items(known) == items
        {
            return Ok(known);
        }
        let new = self.add_items(items)?;
        // If several lists have the same hash, only the last list is found again. The other lists
        // may be stored twice.
        self.interned.insert(hash, new);
        Ok(new)
    }

    fn add_items(&mut self, items: &[Packed]) -> Result<Items, Error> {
        if items.is_empty() {
            return Ok(Items::EMPTY);
        }
        let start = next_number(self.fixed.len())?;
        let len = next_number(items.len())?;
        if len >= Items::ENTRY {
            return Err(Error::new("a container has 2^32 items", "split the recording"));
        }
        self.fixed.extend_from_slice(items);
        Ok(Items { start, len })
    }

    fn items(&self, items: Items) -> &[Packed] {
        match items {
            Items { start, len: Items::GROWING } => &self.growing[start as usize],
            Items { len: Items::ENTRY, .. } => &[],
            Items { start, len } => &self.fixed[start as usize..][..len as usize],
        }
    }

    /// Describes the value in words, for a message.
    pub(super) fn describe(&self, value: Value) -> String {
        match value {
            Value::None => "None".into(),
            Value::Bool(true) => "True".into(),
            Value::Bool(false) => "False".into(),
            Value::Int(value) => format!("the number {value}"),
            Value::Long(number) => format!("the number {}", self.long(number)),
            Value::Unsigned(number) => format!("the number {}", self.unsigned(number)),
            Value::HugeInt => "a number of more than 64 bits".into(),
            Value::Float(number) => format!("the float {}", self.float(number)),
            Value::Text(number) => format!("the string {}", quote(self.text(number))),
            Value::Bytes => "a bytes object".into(),
            Value::List(number) => format!("a list of {}", self.sequence(number).len()),
            Value::Tuple(number) => format!("a tuple of {}", self.sequence(number).len()),
            Value::Dict(_) => "a dict".into(),
        }
    }
}
