//! Encodes plain data as pickles of protocols 2 to 5, in place of CPython's encoder.

/// Plain data.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Data>),
    Tuple(Vec<Data>),
    Dict(Vec<(Data, Data)>),
}

impl From<i64> for Data {
    fn from(value: i64) -> Self {
        Self::Int(value.into())
    }
}

impl From<&str> for Data {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<Vec<Data>> for Data {
    fn from(value: Vec<Data>) -> Self {
        Self::List(value)
    }
}

/// Returns a dict with strings as keys.
pub(crate) fn dict<const N: usize>(pairs: [(&str, Data); N]) -> Data {
    Data::Dict(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

pub(crate) fn encode(data: &Data, protocol: u8) -> Vec<u8> {
    let mut encoder = Encoder { protocol, bytes: vec![0x80, protocol], memo: Vec::new() };
    if protocol >= 4 {
        encoder.bytes.push(0x95);
        encoder.bytes.extend([0; 8]);
    }
    encoder.data(data);
    encoder.bytes.push(b'.');
    if protocol >= 4 {
        let length = encoder.bytes.len() as u64 - 11;
        encoder.bytes[3..11].copy_from_slice(&length.to_le_bytes());
    }
    encoder.bytes
}

struct Encoder {
    protocol: u8,
    bytes: Vec<u8>,
    /// Texts that are in the pickle's memo, by index; `None` at the index of another value.
    memo: Vec<Option<String>>,
}

impl Encoder {
    fn data(&mut self, data: &Data) {
        match data {
            Data::None => self.bytes.push(b'N'),
            Data::Bool(value) => self.bytes.push(if *value { 0x88 } else { 0x89 }),
            Data::Int(value) => self.int(*value),
            Data::Float(value) => {
                self.bytes.push(b'G');
                self.bytes.extend(value.to_be_bytes());
            }
            Data::Text(text) => self.text(text),
            Data::Bytes(bytes) => {
                self.length(bytes.len(), Some(b'C'), b'B', 0x8e);
                self.bytes.extend(bytes);
                self.memoize(None);
            }
            Data::List(items) => {
                self.bytes.push(b']');
                self.memoize(None);
                for batch in items.chunks(1000) {
                    match batch {
                        [item] => {
                            self.data(item);
                            self.bytes.push(b'a');
                        }
                        batch => {
                            self.bytes.push(b'(');
                            batch.iter().for_each(|item| self.data(item));
                            self.bytes.push(b'e');
                        }
                    }
                }
            }
            Data::Tuple(items) => {
                if items.len() > 3 {
                    self.bytes.push(b'(');
                }
                items.iter().for_each(|item| self.data(item));
                self.bytes.push(match items.len() {
                    0 => b')',
                    1 => 0x85,
                    2 => 0x86,
                    3 => 0x87,
                    _ => b't',
                });
                self.memoize(None);
            }
            Data::Dict(pairs) => {
                self.bytes.push(b'}');
                self.memoize(None);
                for batch in pairs.chunks(1000) {
                    let single = batch.len() == 1;
                    self.bytes.extend((!single).then_some(b'('));
                    for (key, value) in batch {
                        self.data(key);
                        self.data(value);
                    }
                    self.bytes.push(if single { b's' } else { b'u' });
                }
            }
        }
    }

    fn int(&mut self, value: i128) {
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.bytes.push(b'M');
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.bytes.push(b'J');
            self.bytes.extend(int.to_le_bytes());
        } else {
            let mut bytes = value.to_le_bytes().to_vec();
            // Keeps the shortest two's complement with the right sign.
            while let [.., before, last] = bytes[..]
                && (last == 0 && before < 0x80 || last == 0xff && before >= 0x80)
            {
                bytes.pop();
            }
            self.bytes.extend([0x8a, bytes.len() as u8]);
            self.bytes.extend(bytes);
        }
    }

    fn text(&mut self, text: &str) {
        let known = self.memo.iter().position(|known| known.as_deref() == Some(text));
        match known.map(|index| (index, u8::try_from(index))) {
            Some((_, Ok(index))) => self.bytes.extend([b'h', index]),
            Some((index, Err(_))) => {
                self.bytes.push(b'j');
                self.bytes.extend((index as u32).to_le_bytes());
            }
            None => {
                let short = (self.protocol >= 4).then_some(0x8c);
                self.length(text.len(), short, b'X', 0x8d);
                self.bytes.extend(text.as_bytes());
                self.memoize(Some(text.to_owned()));
            }
        }
    }

    fn length(&mut self, length: usize, short: Option<u8>, medium: u8, long: u8) {
        match (u8::try_from(length), short, u32::try_from(length)) {
            (Ok(length), Some(short), _) => self.bytes.extend([short, length]),
            (_, _, Ok(length)) => {
                self.bytes.push(medium);
                self.bytes.extend(length.to_le_bytes());
            }
            _ => {
                self.bytes.push(long);
                self.bytes.extend((length as u64).to_le_bytes());
            }
        }
    }

    fn memoize(&mut self, text: Option<String>) {
        let index = self.memo.len();
        self.memo.push(text);
        if self.protocol >= 4 {
            self.bytes.push(0x94);
        } else if let Ok(index) = u8::try_from(index) {
            self.bytes.extend([b'q', index]);
        } else {
            self.bytes.push(b'r');
            self.bytes.extend((index as u32).to_le_bytes());
        }
    }
}

/// Returns an entry of `device_traces` with a time of 1 s.
pub(crate) fn entry(action: &str, addr: i64, size: i64, stream: i64) -> Data {
    dict([
        ("action", action.into()),
        ("addr", addr.into()),
        ("size", size.into()),
        ("stream", stream.into()),
        ("time_us", 1_000_000_i64.into()),
    ])
}

/// Returns a segment with these blocks. A block has an address, size, requested size and state.
pub(crate) fn segment(device: i64, stream: i64, blocks: &[(i64, i64, i64, &str)]) -> Data {
    let blocks = blocks.iter().map(|&(address, size, requested, state)| {
        dict([
            ("address", address.into()),
            ("size", size.into()),
            ("requested_size", requested.into()),
            ("state", state.into()),
            ("frames", Data::List(Vec::new())),
        ])
    });
    dict([
        ("device", device.into()),
        ("address", 0x1000.into()),
        ("stream", stream.into()),
        ("blocks", Data::List(blocks.collect())),
    ])
}

pub(crate) fn snapshot(segments: Vec<Data>, traces: Vec<Vec<Data>>) -> Data {
    let traces = traces.into_iter().map(Data::List).collect();
    dict([("segments", Data::List(segments)), ("device_traces", Data::List(traces))])
}
