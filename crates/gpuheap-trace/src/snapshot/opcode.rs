//! Defines pickle's opcodes for plain data, and the names of all other opcodes.

macro_rules! opcodes {
    ($($name:ident = $byte:literal;)*) => {
        $(pub(super) const $name: u8 = $byte;)*
        /// Returns the name in Python's `pickletools`.
        pub(super) fn name(opcode: u8) -> Option<&'static str> {
            match opcode {
                $($byte => Some(stringify!($name)),)*
                other => other_name(other),
            }
        }
    };
}

// Opcodes that CPython's pickle (C and Python) emits for dict, list, tuple, str, int, float, bool,
// None and bytes in protocols 2 to 5. Bytes need protocol 3: protocol 2 writes them as a call of
// `_codecs.encode`.
opcodes! {
    PROTO = 0x80;
    FRAME = 0x95;
    STOP = b'.';
    MARK = b'(';
    POP = b'0';
    POP_MARK = b'1';
    NONE = b'N';
    NEWTRUE = 0x88;
    NEWFALSE = 0x89;
    BININT = b'J';
    BININT1 = b'K';
    BININT2 = b'M';
    LONG1 = 0x8a;
    LONG4 = 0x8b;
    BINFLOAT = b'G';
    SHORT_BINUNICODE = 0x8c;
    BINUNICODE = b'X';
    BINUNICODE8 = 0x8d;
    SHORT_BINBYTES = b'C';
    BINBYTES = b'B';
    BINBYTES8 = 0x8e;
    EMPTY_LIST = b']';
    APPEND = b'a';
    APPENDS = b'e';
    EMPTY_TUPLE = b')';
    TUPLE1 = 0x85;
    TUPLE2 = 0x86;
    TUPLE3 = 0x87;
    TUPLE = b't';
    EMPTY_DICT = b'}';
    SETITEM = b's';
    SETITEMS = b'u';
    BINGET = b'h';
    LONG_BINGET = b'j';
    BINPUT = b'q';
    LONG_BINPUT = b'r';
    MEMOIZE = 0x94;
}

/// Opcode that looks up a class or function by a name that follows in the pickle.
pub(super) const GLOBAL: u8 = b'c';
pub(super) const INST: u8 = b'i';
/// Opcode that looks up a class or function by a name on the stack.
pub(super) const STACK_GLOBAL: u8 = 0x93;

fn other_name(opcode: u8) -> Option<&'static str> {
    Some(match opcode {
        GLOBAL => "GLOBAL",
        INST => "INST",
        STACK_GLOBAL => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        b'I' => "INT",
        b'L' => "LONG",
        b'F' => "FLOAT",
        b'S' => "STRING",
        b'T' => "BINSTRING",
        b'U' => "SHORT_BINSTRING",
        b'V' => "UNICODE",
        b'l' => "LIST",
        b'd' => "DICT",
        b'2' => "DUP",
        b'g' => "GET",
        b'p' => "PUT",
        0x8f => "EMPTY_SET",
        0x90 => "ADDITEMS",
        0x91 => "FROZENSET",
        0x96 => "BYTEARRAY8",
        _ => return None,
    })
}

/// Returns `true` if the opcode makes an unpickler import, call or fetch something.
pub(super) fn reaches_outside(opcode: u8) -> bool {
    matches!(
        opcode,
        GLOBAL | INST | STACK_GLOBAL | b'R' | b'b' | b'o' | 0x81 | 0x92 | 0x82
            ..=0x84 | b'P' | b'Q' | 0x97 | 0x98
    )
}
