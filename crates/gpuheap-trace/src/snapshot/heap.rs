//! The values of a pickle, held by index: values may be shared and may contain themselves, and
//! dropping them recurses into nothing.

use crate::Error;
use crate::error::quote;
use crate::model::next_number;

/// A value; what does not fit is an index into the [`Heap`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number from 2^63 up to 2^64 - 1.
    Unsigned(u64),
    /// A whole number that fits neither of the two.
    HugeInt,
    Float(f64),
    Text(u32),
    Bytes,
    List(u32),
    Tuple(u32),
    Dict(u32),
}

/// What the values refer to. Texts stay in the input.
#[derive(Debug, Default)]
pub(super) struct Heap<'a> {
    texts: Vec<&'a [u8]>,
    sequences: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl<'a> Heap<'a> {
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
        self.sequences.push(items);
        Ok(Value::Tuple(number))
    }

    pub(super) fn add_dict(&mut self) -> Result<Value, Error> {
        let number = next_number(self.dicts.len())?;
        self.dicts.push(Vec::new());
        Ok(Value::Dict(number))
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

    pub(super) fn extend_list(&mut self, number: u32, items: impl Iterator<Item = Value>) {
        self.sequences[number as usize].extend(items);
    }

    pub(super) fn extend_dict(&mut self, number: u32, items: impl Iterator<Item = (Value, Value)>) {
        self.dicts[number as usize].extend(items);
    }

    /// The value in words, for a message.
    pub(super) fn describe(&self, value: Value) -> String {
        match value {
            Value::None => "None".into(),
            Value::Bool(true) => "True".into(),
            Value::Bool(false) => "False".into(),
            Value::Int(value) => format!("the number {value}"),
            Value::Unsigned(value) => format!("the number {value}"),
            Value::HugeInt => "a number of more than 64 bits".into(),
            Value::Float(value) => format!("the float {value}"),
            Value::Text(number) => format!("the string {}", quote(self.text(number))),
            Value::Bytes => "a bytes object".into(),
            Value::List(number) => format!("a list of {}", self.sequence(number).len()),
            Value::Tuple(number) => format!("a tuple of {}", self.sequence(number).len()),
            Value::Dict(_) => "a dict".into(),
        }
    }
}
