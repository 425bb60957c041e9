//! Reader of pickles of plain data. It refuses opcodes that import, call or build anything, and
//! names the opcode in the error.
//!
//! Time and memory are linear in the input. Lengths are checked against the rest of the input,
//! shared values stay shared, and nothing recurses. A file is refused as soon as its values take
//! more memory per byte than the values of a recording. The input is buffered, never held whole.

use std::io::Read;

use super::heap::Heap;
use super::input::Input;
use super::memo::Memo;
use super::opcode as op;
use super::value::{Packed, Value};
use crate::error::quote;
use crate::{Error, Place};

/// Maximum memory that the values may take, in bytes for each byte of the pickle. In the example
/// recordings, they take one byte for each byte. Dicts of three numbers, such as frames that are
/// not shared, take five.
const HELD_PER_BYTE: u64 = 6;
/// Memory that the values may take beyond [`HELD_PER_BYTE`] times the bytes read, in bytes. The
/// start of a file may need more for each byte.
const HELD_AT_ONCE: u64 = 4 << 20;
/// Number of opcodes of the pickle between two checks of the memory limit. Between checks, memory
/// grows only little: an opcode makes a value of some tens of bytes, or of its argument's length.
const COUNTED_AFTER: u32 = 64;

/// A pickle that was read.
pub(super) struct Pickle<R> {
    /// Value of the whole pickle.
    pub(super) value: Value,
    /// Containers and texts that the value refers to.
    pub(super) heap: Heap,
    /// Length of the pickle, in bytes.
    pub(super) len: u64,
    /// Source of the pickle, at its end.
    pub(super) source: R,
}

/// Reads a pickle. Ignores bytes after its end, as Python does. All values together may take at
/// most `limit` bytes.
pub(super) fn read<R: Read>(source: R, limit: u64) -> Result<Pickle<R>, (R, Error)> {
    let mut machine = Machine::new(source, limit);
    let result = machine.run();
    let Machine { input, opcode_at, heap, .. } = machine;
    let len = input.position();
    let (source, failure) = input.finish(result.is_ok());
    match (result, failure) {
        (_, Some(failure)) => Err((source, failure)),
        (Err(error), None) => Err((source, error.at(Place::Byte(opcode_at)))),
        (Ok(value), None) => Ok(Pickle { value, heap, len, source }),
    }
}

struct Machine<R> {
    input: Input<R>,
    opcode: u8,
    opcode_at: u64,
    stack: Vec<Packed>,
    /// Lengths of `stack` at the MARK opcodes that no later opcode has ended.
    marks: Vec<usize>,
    memo: Memo,
    heap: Heap,
    limit: u64,
}

impl<R: Read> Machine<R> {
    fn new(source: R, limit: u64) -> Self {
        Self {
            input: Input::new(source),
            opcode: 0,
            opcode_at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            heap: Heap::default(),
            limit,
        }
    }

    fn run(&mut self) -> Result<Value, Error> {
        loop {
            for _ in 0..COUNTED_AFTER {
                self.opcode_at = self.input.position();
                let Ok([opcode]) = self.input.array() else {
                    return Err(Error::new(
                        "the pickle ends without STOP",
                        "copy the file again, or record again",
                    ));
                };
                self.opcode = opcode;
                if opcode == op::STOP {
                    self.keep_to_the_budget()?;
                    return self.pop().map(Packed::value);
                }
                self.step()?;
            }
            self.keep_to_the_budget()?;
        }
    }

    /// Checks the memory that the values take. A small gzipped file can unpack to very many
    /// one-byte opcodes, each of which makes a value of tens of bytes. The budget grows with the
    /// bytes read so far, so such a file is refused early.
    fn keep_to_the_budget(&self) -> Result<(), Error> {
        let (held, read) = (self.held(), self.input.position());
        if held > read.saturating_mul(HELD_PER_BYTE).saturating_add(HELD_AT_ONCE) {
            return Err(Error::new(
                format!(
                    "{read} bytes of the pickle hold values of {held} bytes, far more than a recording"
                ),
                "this is no recording of an allocator; record again",
            ));
        }
        if held > self.limit {
            return Err(Error::new(
                format!("the values of the pickle take more than {} bytes", self.limit),
                "raise ReadOptions::unpacked_limit if the file is meant to be this large",
            ));
        }
        Ok(())
    }

    /// Returns the bytes that all values take, without the spare capacity of vectors.
    fn held(&self) -> u64 {
        let stack = size_of_val(&self.stack[..]) + size_of_val(&self.marks[..]);
        (self.heap.held() + stack + self.memo.held()) as u64
    }

    fn step(&mut self) -> Result<(), Error> {
        match self.opcode {
            op::PROTO => self.protocol(),
            op::FRAME => {
                let length = self.length8()?;
                let ahead = self.input.look_ahead(length);
                ahead.map_err(|left| self.too_short(length, left))
            }
            op::MARK => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::POP if self.marks.last() == Some(&self.stack.len()) => {
                self.marks.pop();
                Ok(())
            }
            op::POP => self.pop().map(drop),
            op::POP_MARK => {
                let mark = self.take_mark()?;
                self.stack.truncate(mark);
                Ok(())
            }

            op::NONE => self.push(Value::None),
            op::NEWTRUE => self.push(Value::Bool(true)),
            op::NEWFALSE => self.push(Value::Bool(false)),
            op::BININT => {
                self.array().and_then(|b| self.push(Value::Int(i32::from_le_bytes(b).into())))
            }
            op::BININT1 => self.array().and_then(|[n]| self.push(Value::Int(n.into()))),
            op::BININT2 => {
                self.array().and_then(|b| self.push(Value::Int(u16::from_le_bytes(b).into())))
            }
            op::LONG1 => self.length1().and_then(|length| self.long(length)),
            op::LONG4 => self.length4().and_then(|length| self.long(length)),
            op::BINFLOAT => {
                let float = self.array().map(f64::from_be_bytes)?;
                self.heap.add_float(float).and_then(|float| self.push(float))
            }

            op::SHORT_BINUNICODE => self.length1().and_then(|length| self.text(length)),
            op::BINUNICODE => self.length4().and_then(|length| self.text(length)),
            op::BINUNICODE8 => self.length8().and_then(|length| self.text(length)),
            op::SHORT_BINBYTES => self.length1().and_then(|length| self.skip_bytes(length)),
            op::BINBYTES => self.length4().and_then(|length| self.skip_bytes(length)),
            op::BINBYTES8 => self.length8().and_then(|length| self.skip_bytes(length)),

            op::EMPTY_LIST => self.heap.add_list().and_then(|list| self.push(list)),
            op::APPEND => {
                let item = self.pop()?;
                let list = self.list_below(self.stack.len())?;
                self.heap.extend_list(list, &[item])
            }
            op::APPENDS => {
                let mark = self.take_mark()?;
                let list = self.list_below(mark)?;
                self.heap.extend_list(list, &self.stack[mark..])?;
                self.stack.truncate(mark);
                Ok(())
            }
            op::EMPTY_TUPLE => self.tuple(0),
            op::TUPLE1 => self.tuple(1),
            op::TUPLE2 => self.tuple(2),
            op::TUPLE3 => self.tuple(3),
            op::TUPLE => {
                let mark = self.take_mark()?;
                self.tuple_from(mark)
            }
            op::EMPTY_DICT => self.heap.add_dict().and_then(|dict| self.push(dict)),
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dict = self.dict_below(self.stack.len())?;
                self.heap.set_item(dict, key, value)?.ok_or_else(|| self.ended_entry())
            }
            op::SETITEMS => self.set_items(),

            op::BINGET => self.length1().and_then(|index| self.recall(index)),
            op::LONG_BINGET => self.length4().and_then(|index| self.recall(index)),
            op::BINPUT => self.length1().and_then(|index| self.remember(index)),
            op::LONG_BINPUT => self.length4().and_then(|index| self.remember(index)),
            op::MEMOIZE => self.remember(self.memo.len() as u64),
            _ => Err(self.refusal()),
        }
    }

    fn protocol(&mut self) -> Result<(), Error> {
        match self.length1()? {
            2..=5 => Ok(()),
            protocol => Err(Error::new(
                format!("pickle protocol {protocol} is not known"),
                "save it with protocol 2, 3, 4 or 5",
            )),
        }
    }

    fn tuple(&mut self, length: usize) -> Result<(), Error> {
        let start = self.stack.len().checked_sub(length).filter(|&start| start >= self.floor());
        let start = start.ok_or_else(|| self.malformed("finds too few values on the stack"))?;
        self.tuple_from(start)
    }

    fn tuple_from(&mut self, start: usize) -> Result<(), Error> {
        let tuple = self.heap.add_tuple(&self.stack[start..])?;
        self.stack.truncate(start);
        self.push(tuple)
    }

    fn set_items(&mut self) -> Result<(), Error> {
        let mark = self.take_mark()?;
        let dict = self.dict_below(mark)?;
        let items = &self.stack[mark..];
        if !items.len().is_multiple_of(2) {
            return Err(self.malformed("finds a key without a value"));
        }
        self.heap.set_items(dict, items)?.ok_or_else(|| self.ended_entry())?;
        self.stack.truncate(mark);
        Ok(())
    }

    fn long(&mut self, length: u64) -> Result<(), Error> {
        let Self { input, heap, .. } = self;
        let bytes = match input.take(length) {
            Ok(bytes) => bytes,
            Err(left) => return Err(self.too_short(length, left)),
        };
        let value = match bytes {
            [] => Value::Int(0),
            [low @ .., last] if bytes.len() <= 8 => {
                let mut extended = [if last & 0x80 == 0 { 0 } else { 0xff }; 8];
                extended[..low.len()].copy_from_slice(low);
                extended[low.len()] = *last;
                heap.add_int(i64::from_le_bytes(extended))?
            }
            [low @ .., 0] => match low.try_into() {
                Ok(low) => heap.add_unsigned(u64::from_le_bytes(low))?,
                Err(_) => Value::HugeInt,
            },
            _ => Value::HugeInt,
        };
        self.push(value)
    }

    fn text(&mut self, length: u64) -> Result<(), Error> {
        let text = match self.input.take(length) {
            Ok(text) => self.heap.add_text(text)?,
            Err(left) => return Err(self.too_short(length, left)),
        };
        self.push(text)
    }

    fn skip_bytes(&mut self, length: u64) -> Result<(), Error> {
        self.input.skip(length).map_err(|left| self.too_short(length, left))?;
        self.push(Value::Bytes)
    }

    fn remember(&mut self, index: u64) -> Result<(), Error> {
        let top = self.top()?;
        self.memo.set(memo_index(index)?, top);
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Result<(), Error> {
        match self.memo.get(memo_index(index)?) {
            Some(value) => {
                self.stack.push(value);
                Ok(())
            }
            None => Err(self.malformed(&format!("asks for memo {index}, which was never stored"))),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), Error> {
        self.stack.push(value.into());
        Ok(())
    }

    fn pop(&mut self) -> Result<Packed, Error> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top(&self) -> Result<Packed, Error> {
        self.below(self.stack.len())
    }

    /// Returns the value just below this height of the stack.
    fn below(&self, height: usize) -> Result<Packed, Error> {
        let above_floor = self.stack.get(self.floor()..height);
        above_floor
            .and_then(<[Packed]>::last)
            .copied()
            .ok_or_else(|| self.malformed("finds nothing on the stack"))
    }

    /// Removes the last mark. Returns its height in the stack.
    fn take_mark(&mut self) -> Result<usize, Error> {
        self.marks.pop().ok_or_else(|| self.malformed("finds no MARK"))
    }

    fn list_below(&self, height: usize) -> Result<u32, Error> {
        match self.below(height)?.value() {
            Value::List(number) => Ok(number),
            other => Err(self.wrong_target(other, "list")),
        }
    }

    fn dict_below(&self, height: usize) -> Result<u32, Error> {
        match self.below(height)?.value() {
            Value::Dict(number) => Ok(number),
            other => Err(self.wrong_target(other, "dict")),
        }
    }

    fn wrong_target(&self, found: Value, wanted: &str) -> Error {
        self.malformed(&format!("finds {} as its {wanted}", self.heap.describe(found)))
    }

    /// Returns the height of the last mark. No value below it may be popped.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn length1(&mut self) -> Result<u64, Error> {
        self.array().map(|bytes| u8::from_le_bytes(bytes).into())
    }

    fn length4(&mut self) -> Result<u64, Error> {
        self.array().map(|bytes| u32::from_le_bytes(bytes).into())
    }

    fn length8(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.input.array().map_err(|left| self.too_short(N as u64, left))
    }

    fn too_short(&self, length: u64, left: u64) -> Error {
        self.malformed(&format!("needs {length} bytes where {left} are left"))
    }

    /// Returns the error for a pickle that adds a key to a dict that is already stored as an entry.
    /// An entry has no room for the key, so it would be lost.
    fn ended_entry(&self) -> Error {
        self.malformed("finds an entry of a trace as its dict, which was whole before")
    }

    fn malformed(&self, what: &str) -> Error {
        let name = op::name(self.opcode).unwrap_or("?");
        Error::new(
            format!("opcode {name} of the pickle {what}"),
            "the file is cut or damaged: copy it again, or record again",
        )
    }

    fn refusal(&mut self) -> Error {
        let Some(name) = op::name(self.opcode) else {
            return Error::new(
                format!("0x{:02x} is no pickle opcode", self.opcode),
                "the file is damaged or no pickle: copy it again, or record again",
            );
        };
        if !op::reaches_outside(self.opcode) {
            return Error::new(
                format!("pickle opcode {name} is not one that a snapshot needs"),
                "save plain dicts, lists, strings and numbers with protocol 2 or later",
            );
        }
        let wanted = match self.wanted_global() {
            Some(global) => format!("asks for {global} (opcode {name})"),
            None => format!("asks to import, call or build something (opcode {name})"),
        };
        Error::new(
            format!("the pickle {wanted}, which is refused"),
            "a memory snapshot holds plain data only: do not load this file in Python",
        )
    }

    /// Returns the class or function that the current opcode looks up.
    fn wanted_global(&mut self) -> Option<String> {
        // Maximum number of bytes to search for two names. Error messages cut names to far less.
        const MOST: usize = 1 << 10;
        let (module, name) = match self.opcode {
            op::GLOBAL | op::INST => {
                let mut lines = self.input.peek(MOST).split(|&byte| byte == b'\n');
                (lines.next()?, lines.next()?)
            }
            op::STACK_GLOBAL => match self.stack.get(self.floor()..)? {
                [.., module, name] => match (module.value(), name.value()) {
                    (Value::Text(module), Value::Text(name)) => {
                        (self.heap.text(module), self.heap.text(name))
                    }
                    _ => return None,
                },
                _ => return None,
            },
            _ => return None,
        };
        Some(format!("{} of module {}", quote(name), quote(module)))
    }
}

fn memo_index(index: u64) -> Result<u32, Error> {
    u32::try_from(index)
        .map_err(|_| Error::new("more than 2^32 memo entries", "split the recording"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 4 << 30;

    fn refusal(input: &[u8], limit: u64) -> Option<Error> {
        read(input, limit).err().map(|(_, error)| error)
    }

    /// Repeats opcodes that take more memory per byte than any recording does.
    #[test]
    fn pickle_bomb_is_refused_early() {
        let bombs: [(&str, &[u8], &[u8]); 8] = [
            ("values on the stack", b"", b"N"),
            ("lists", b"", b"]"),
            ("dicts", b"", b"}"),
            ("tuples", b"", b")"),
            ("nested tuples", b"N", b"\x85"),
            ("dicts of one", b"", b"}NNs"),
            ("memo", b"N", b"\x94"),
            ("memoised lists", b"", b"]\x94"),
        ];
        for (name, start, repeated) in bombs {
            let body = repeated.repeat((64 << 20) / repeated.len());
            let input = [b"\x80\x04", start, &body, b"."].concat();
            let error = refusal(&input, LIMIT).expect(name);
            assert!(error.what().ends_with("far more than a recording"), "{name}: {error}");
            let &Place::Byte(at) = error.place() else { panic!("{name}: {error}") };
            // The reader stopped soon after it exceeded the budget.
            assert!(at < 4 << 20, "{name}: {error}");
        }
    }

    #[test]
    fn sparse_pickle_is_refused_at_limit() {
        let repeated: [&[u8]; 2] = [b"\x8c\0", b"G\0\0\0\0\0\0\0\0"];
        for repeated in repeated {
            let body = repeated.repeat((4 << 20) / repeated.len());
            let input = [b"\x80\x04(", &body[..], b"t."].concat();
            assert!(refusal(&input, LIMIT).is_none());
            let error = refusal(&input, 1 << 20).unwrap();
            assert_eq!(error.what(), "the values of the pickle take more than 1048576 bytes");
            let &Place::Byte(at) = error.place() else { panic!("{error}") };
            assert!(at < 1 << 20, "{error}");
        }
    }

    #[test]
    fn recordings_are_far_below_the_budget() {
        for file in ["two_streams", "gpt_train_short"] {
            let path = format!("../../examples/traces/{file}.snapshot.pickle.gz");
            let mut packed = flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap());
            let mut input = Vec::new();
            std::io::Read::read_to_end(&mut packed, &mut input).unwrap();
            let mut machine = Machine::new(&input[..], LIMIT);
            machine.run().unwrap();
            let (held, read) = (machine.held(), input.len() as u64);
            assert!(held * 3 < read * HELD_PER_BYTE, "{file}: {held} of {read}");
            // Shows that memory is counted at all.
            assert!(held * 2 > read, "{file}: {held} of {read}");
        }
    }
}
