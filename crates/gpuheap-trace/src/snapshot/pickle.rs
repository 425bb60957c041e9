//! A reader for pickles of plain data. It has no way to import, call or build anything: opcodes
//! that would are refused by name.
//!
//! Work is linear in the input: lengths are checked against what is left of it, shared values are
//! shared, and nothing recurses. So is memory, and a file is refused as soon as it makes more of
//! its bytes than a recording does.

use rustc_hash::FxHashMap;

use super::heap::{Heap, Value};
use super::opcode as op;
use crate::error::quote;
use crate::{Error, Place};

/// The most bytes of memory that a byte of the pickle may come to. The example recordings come to
/// 4, dicts of three numbers, as frames that are not shared would be, to 8.
const HELD_PER_BYTE: usize = 16;
/// What may be held beside that, since the start of a file need not be like the rest.
const HELD_AT_ONCE: usize = 4 << 20;
/// A memo entry, the share of the hash table that is empty included.
const MEMO_ENTRY: usize = 24;

/// The value that the pickle holds, and what it refers to. Bytes after the end are ignored, as
/// Python does. All values together may take `limit` bytes.
pub(super) fn read(input: &[u8], limit: u64) -> Result<(Value, Heap<'_>), Error> {
    let mut machine = Machine::new(input, limit);
    let value = machine.run().map_err(|error| error.at(Place::Byte(machine.opcode_at as u64)))?;
    Ok((value, machine.heap))
}

struct Machine<'a> {
    input: &'a [u8],
    position: usize,
    opcode: u8,
    opcode_at: usize,
    stack: Vec<Value>,
    /// Heights of the stack at which the open marks stand.
    marks: Vec<usize>,
    memo: FxHashMap<u32, Value>,
    heap: Heap<'a>,
    limit: usize,
}

impl<'a> Machine<'a> {
    fn new(input: &'a [u8], limit: u64) -> Self {
        Self {
            input,
            position: 0,
            opcode: 0,
            opcode_at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: FxHashMap::default(),
            heap: Heap::default(),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }

    fn run(&mut self) -> Result<Value, Error> {
        loop {
            self.opcode_at = self.position;
            let &[opcode] =
                self.input.get(self.position..).and_then(<[u8]>::first_chunk).ok_or_else(|| {
                    Error::new(
                        "the pickle ends without STOP",
                        "copy the file again, or record again",
                    )
                })?;
            self.opcode = opcode;
            self.position += 1;
            if opcode == op::STOP {
                return self.pop();
            }
            self.step()?;
            self.keep_to_the_budget()?;
        }
    }

    /// A packed file of some hundred kilobytes can unpack to any number of opcodes that are one
    /// byte each and make a value of tens of bytes. The budget grows with the bytes that were read,
    /// and not with those that are there, so that such a file is found out at once.
    fn keep_to_the_budget(&self) -> Result<(), Error> {
        let held = self.held();
        if held > self.position.saturating_mul(HELD_PER_BYTE).saturating_add(HELD_AT_ONCE) {
            return Err(Error::new(
                format!(
                    "{} bytes of the pickle hold values of {held} bytes, far more than a recording",
                    self.position
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

    /// How many bytes all values take, but for what vectors have in reserve.
    fn held(&self) -> usize {
        self.heap.held()
            + size_of_val(&self.stack[..])
            + size_of_val(&self.marks[..])
            + self.memo.len() * MEMO_ENTRY
    }

    fn step(&mut self) -> Result<(), Error> {
        match self.opcode {
            op::PROTO => self.protocol(),
            op::FRAME => {
                let length = self.length8()?;
                self.left_for(length).map(drop)
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
            op::POP_MARK => self.take_to_mark().map(drop),

            op::NONE => self.push(Value::None),
            op::NEWTRUE => self.push(Value::Bool(true)),
            op::NEWFALSE => self.push(Value::Bool(false)),
            op::BININT => self.array().and_then(|b| self.push(Value::Int(i32::from_le_bytes(b)))),
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
                let list = self.list_on_top()?;
                self.heap.extend_list(list, &[item]);
                Ok(())
            }
            op::APPENDS => {
                let items = self.take_to_mark()?;
                let list = self.list_on_top()?;
                self.heap.extend_list(list, &items);
                Ok(())
            }
            op::EMPTY_TUPLE => self.tuple(0),
            op::TUPLE1 => self.tuple(1),
            op::TUPLE2 => self.tuple(2),
            op::TUPLE3 => self.tuple(3),
            op::TUPLE => {
                let items = self.take_to_mark()?;
                self.heap.add_tuple(items).and_then(|tuple| self.push(tuple))
            }
            op::EMPTY_DICT => self.heap.add_dict().and_then(|dict| self.push(dict)),
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dict = self.dict_on_top()?;
                self.heap.extend_dict(dict, &[[key, value]]);
                Ok(())
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
        let items = self.stack.split_off(start);
        self.heap.add_tuple(items).and_then(|tuple| self.push(tuple))
    }

    fn set_items(&mut self) -> Result<(), Error> {
        let items = self.take_to_mark()?;
        let dict = self.dict_on_top()?;
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(self.malformed("finds a key without a value"));
        };
        self.heap.extend_dict(dict, pairs);
        Ok(())
    }

    fn long(&mut self, length: u64) -> Result<(), Error> {
        let bytes = self.take(length)?;
        let value = match bytes {
            [] => Value::Int(0),
            [low @ .., last] if bytes.len() <= 8 => {
                let mut extended = [if last & 0x80 == 0 { 0 } else { 0xff }; 8];
                extended[..low.len()].copy_from_slice(low);
                extended[low.len()] = *last;
                self.heap.add_int(i64::from_le_bytes(extended))?
            }
            [low @ .., 0] => match low.try_into() {
                Ok(low) => self.heap.add_unsigned(u64::from_le_bytes(low))?,
                Err(_) => Value::HugeInt,
            },
            _ => Value::HugeInt,
        };
        self.push(value)
    }

    fn text(&mut self, length: u64) -> Result<(), Error> {
        let text = self.take(length)?;
        self.heap.add_text(text).and_then(|text| self.push(text))
    }

    fn skip_bytes(&mut self, length: u64) -> Result<(), Error> {
        self.take(length)?;
        self.push(Value::Bytes)
    }

    fn remember(&mut self, index: u64) -> Result<(), Error> {
        let top = self.top()?;
        self.memo.insert(memo_index(index)?, top);
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Result<(), Error> {
        match self.memo.get(&memo_index(index)?) {
            Some(&value) => self.push(value),
            None => Err(self.malformed(&format!("asks for memo {index}, which was never stored"))),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), Error> {
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Error> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top(&self) -> Result<Value, Error> {
        self.stack
            .get(self.floor()..)
            .and_then(<[Value]>::last)
            .copied()
            .ok_or_else(|| self.malformed("finds nothing on the stack"))
    }

    fn take_to_mark(&mut self) -> Result<Vec<Value>, Error> {
        let mark = self.marks.pop().ok_or_else(|| self.malformed("finds no MARK"))?;
        Ok(self.stack.split_off(mark))
    }

    fn list_on_top(&self) -> Result<u32, Error> {
        match self.top()? {
            Value::List(number) => Ok(number),
            other => {
                Err(self.malformed(&format!("finds {} as its list", self.heap.describe(other))))
            }
        }
    }

    fn dict_on_top(&self) -> Result<u32, Error> {
        match self.top()? {
            Value::Dict(number) => Ok(number),
            other => {
                Err(self.malformed(&format!("finds {} as its dict", self.heap.describe(other))))
            }
        }
    }

    /// Nothing below the last mark may be popped.
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
        let start = self.left_for(N as u64)?;
        let array = start.first_chunk().copied().unwrap_or([0; N]);
        self.position += N;
        Ok(array)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Error> {
        let bytes = self.left_for(length)?;
        self.position += bytes.len();
        Ok(bytes)
    }

    /// The next `length` bytes of the input.
    fn left_for(&self, length: u64) -> Result<&'a [u8], Error> {
        let left = self.input.get(self.position..).unwrap_or_default();
        usize::try_from(length).ok().and_then(|length| left.get(..length)).ok_or_else(|| {
            self.malformed(&format!("needs {length} bytes where {} are left", left.len()))
        })
    }

    fn malformed(&self, what: &str) -> Error {
        let name = op::name(self.opcode).unwrap_or("?");
        Error::new(
            format!("opcode {name} of the pickle {what}"),
            "the file is cut or damaged: copy it again, or record again",
        )
    }

    fn refusal(&self) -> Error {
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

    /// The class or function that the current opcode looks up.
    fn wanted_global(&self) -> Option<String> {
        let (module, name) = match self.opcode {
            op::GLOBAL | op::INST => {
                let mut lines = self.input.get(self.position..)?.split(|&byte| byte == b'\n');
                (lines.next()?, lines.next()?)
            }
            op::STACK_GLOBAL => match self.stack.get(self.floor()..)? {
                &[.., Value::Text(module), Value::Text(name)] => {
                    (self.heap.text(module), self.heap.text(name))
                }
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

    /// The densest opcodes, again and again: what each makes of a byte is more than a recording does.
    #[test]
    fn a_bomb_is_refused_before_it_takes_much_memory() {
        let bombs: [(&str, &[u8], &[u8]); 9] = [
            ("lists", b"", b"]"),
            ("dicts", b"", b"}"),
            ("tuples", b"", b")"),
            ("nested tuples", b"N", b"\x85"),
            ("lists of one", b"", b"]Na"),
            ("dicts of one", b"", b"}NNs"),
            ("marked lists of one", b"](", b"](Ne"),
            ("memo", b"N", b"\x94"),
            ("memoised lists", b"", b"]\x94"),
        ];
        for (name, start, repeated) in bombs {
            let body = repeated.repeat((64 << 20) / repeated.len());
            let input = [b"\x80\x04", start, &body, b"."].concat();
            let error = read(&input, LIMIT).expect_err(name);
            assert!(error.what().ends_with("far more than a recording"), "{name}: {error}");
            let &Place::Byte(at) = error.place() else { panic!("{name}: {error}") };
            // Each byte that was read came to more than the budget allows; nothing after it was.
            assert!(at < 4 << 20, "{name}: {error}");
        }
    }

    #[test]
    fn what_is_less_dense_is_refused_at_the_limit() {
        let repeated: [&[u8]; 3] = [b"N", b"\x8c\0", b"G\0\0\0\0\0\0\0\0"];
        for repeated in repeated {
            let body = repeated.repeat((4 << 20) / repeated.len());
            let input = [b"\x80\x04(", &body[..], b"t."].concat();
            assert!(read(&input, LIMIT).is_ok());
            let error = read(&input, 1 << 20).unwrap_err();
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
            let mut machine = Machine::new(&input, LIMIT);
            machine.run().unwrap();
            let allowed = input.len() * HELD_PER_BYTE;
            assert!(machine.held() * 3 < allowed, "{file}: {} of {allowed}", machine.held());
            // Not because nothing is counted.
            assert!(machine.held() > input.len(), "{file}: {}", machine.held());
        }
    }
}
