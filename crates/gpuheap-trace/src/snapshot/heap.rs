//! The values of a pickle, held by index: values may be shared and may contain themselves, and
//! dropping them recurses into nothing.

use crate::Error;
use crate::error::quote;
use crate::model::next_number;

/// A value; what does not fit in 32 bits is an index into the [`Heap`]. Files hold millions of
/// them: they are kept small.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i32),
    /// Of [`Heap::long`].
    Long(u32),
    /// Of [`Heap::unsigned`].
    Unsigned(u32),
    /// A whole number that fits none of the three.
    HugeInt,
    /// Of [`Heap::float`].
    Float(u32),
    Text(u32),
    Bytes,
    List(u32),
    Tuple(u32),
    Dict(u32),
}

/// What the values refer to. Texts stay in the input.
#[derive(Debug, Default)]
pub(super) struct Heap<'a> {
    /// Bits of whole numbers and floats of 64 bits.
    wide: Vec<u64>,
    texts: Vec<&'a [u8]>,
    sequences: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    /// Bytes of all items of all containers.
    items_held: usize,
}

/// What an allocator takes for a container with items, beside the items.
const ALLOCATION: usize = 32;

impl<'a> Heap<'a> {
    /// How many bytes the heap holds, but for what its vectors have in reserve.
    pub(super) fn held(&self) -> usize {
        size_of_val(&self.wide[..])
            + size_of_val(&self.texts[..])
            + size_of_val(&self.sequences[..])
            + size_of_val(&self.dicts[..])
            + self.items_held
    }

    pub(super) fn add_int(&mut self, value: i64) -> Result<Value, Error> {
        match i32::try_from(value) {
            Ok(value) => Ok(Value::Int(value)),
            Err(_) => self.add_wide(value.cast_unsigned()).map(Value::Long),
        }
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

    pub(super) fn add_text(&mut self, text: &'a [u8]) -> Result<Value, Error> {
        let number = next_number(self.texts.len())?;
        self.texts.push(text);
        Ok(Value::Text(number))
    }

    pub(super) fn add_list(&mut self) -> Result<Value, Error> {
        let number = next_number(self.sequences.len())?;
        self.sequences.push(Vec::new());
        Ok(Value::List(number))
    }

    pub(super) fn add_tuple(&mut self, items: Vec<Value>) -> Result<Value, Error> {
        let number = next_number(self.sequences.len())?;
        self.items_held += held_by(0, &items);
        self.sequences.push(items);
        Ok(Value::Tuple(number))
    }

    pub(super) fn add_dict(&mut self) -> Result<Value, Error> {
        let number = next_number(self.dicts.len())?;
        self.dicts.push(Vec::new());
        Ok(Value::Dict(number))
    }

    /// A whole number outside of 32 bits and within 64, with sign.
    pub(super) fn long(&self, number: u32) -> i64 {
        self.wide[number as usize].cast_signed()
    }

    /// A whole number from 2^63 up to 2^64 - 1.
    pub(super) fn unsigned(&self, number: u32) -> u64 {
        self.wide[number as usize]
    }

    pub(super) fn float(&self, number: u32) -> f64 {
        f64::from_bits(self.wide[number as usize])
    }

    pub(super) fn text(&self, number: u32) -> &'a [u8] {
        self.texts[number as usize]
    }

    pub(super) fn sequence(&self, number: u32) -> &[Value] {
        &self.sequences[number as usize]
    }

    /// Key and value in the order in which they were set; of equal keys the last counts.
    pub(super) fn dict(&self, number: u32) -> &[(Value, Value)] {
        &self.dicts[number as usize]
    }

    pub(super) fn extend_list(&mut self, number: u32, items: &[Value]) {
        let list = &mut self.sequences[number as usize];
        self.items_held += held_by(list.len(), items);
        list.extend_from_slice(items);
    }

    pub(super) fn extend_dict(&mut self, number: u32, pairs: &[[Value; 2]]) {
        let dict = &mut self.dicts[number as usize];
        self.items_held += held_by(dict.len(), pairs);
        dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
    }

    /// The value in words, for a message.
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

/// What `more` items take in a container that has `len`.
fn held_by<T>(len: usize, more: &[T]) -> usize {
    let first = len == 0 && !more.is_empty();
    size_of_val(more) + if first { ALLOCATION } else { 0 }
}

// Budgets are reckoned with this.
const _: () = assert!(size_of::<Value>() == 8);
