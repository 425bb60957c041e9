//! Values of a pickle. Files contain millions of values, so each value is packed into 64 bits.

/// A value. A large value is an index into the [`Heap`](super::heap::Heap).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    /// An integer of up to 60 bits, signed.
    Int(i64),
    /// Index of an integer of more than 60 bits, for [`Heap::long`](super::heap::Heap::long).
    Long(u32),
    /// Index of an integer of 2^63 or more, for [`Heap::unsigned`](super::heap::Heap::unsigned).
    Unsigned(u32),
    /// An integer of more than 64 bits.
    HugeInt,
    /// A float, by its index for [`Heap::float`](super::heap::Heap::float).
    Float(u32),
    Text(u32),
    Bytes,
    List(u32),
    Tuple(u32),
    Dict(u32),
}

/// A [`Value`] in 64 bits. The low four bits contain the kind. The other bits contain the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Packed(u64);

const KIND_BITS: u32 = 4;

impl Packed {
    /// Integers that fit into a packed value.
    pub(super) const INTS: std::ops::RangeInclusive<i64> =
        (i64::MIN >> KIND_BITS)..=(i64::MAX >> KIND_BITS);

    pub(super) fn value(self) -> Value {
        let number = (self.0 >> KIND_BITS) as u32;
        match self.0 & ((1 << KIND_BITS) - 1) {
            0 => Value::None,
            1 => Value::Bool(number != 0),
            2 => Value::Int(self.0.cast_signed() >> KIND_BITS),
            3 => Value::Long(number),
            4 => Value::Unsigned(number),
            5 => Value::HugeInt,
            6 => Value::Float(number),
            7 => Value::Text(number),
            8 => Value::Bytes,
            9 => Value::List(number),
            10 => Value::Tuple(number),
            _ => Value::Dict(number),
        }
    }
}

impl From<Value> for Packed {
    fn from(value: Value) -> Self {
        let (kind, number) = match value {
            Value::None => (0, 0),
            Value::Bool(value) => (1, u64::from(value)),
            // Packing shifts out the highest bits. Within `INTS`, they only repeat the sign.
            Value::Int(value) => (2, value.cast_unsigned()),
            Value::Long(number) => (3, number.into()),
            Value::Unsigned(number) => (4, number.into()),
            Value::HugeInt => (5, 0),
            Value::Float(number) => (6, number.into()),
            Value::Text(number) => (7, number.into()),
            Value::Bytes => (8, 0),
            Value::List(number) => (9, number.into()),
            Value::Tuple(number) => (10, number.into()),
            Value::Dict(number) => (11, number.into()),
        };
        Self(number << KIND_BITS | kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_the_value() {
        let (least, most) = (*Packed::INTS.start(), *Packed::INTS.end());
        for value in [
            Value::None,
            Value::Bool(false),
            Value::Bool(true),
            Value::Int(0),
            Value::Int(-1),
            Value::Int(least),
            Value::Int(most),
            Value::Long(u32::MAX),
            Value::Unsigned(1),
            Value::HugeInt,
            Value::Float(2),
            Value::Text(3),
            Value::Bytes,
            Value::List(4),
            Value::Tuple(u32::MAX),
            Value::Dict(5),
        ] {
            assert_eq!(Packed::from(value).value(), value);
        }
    }
}
