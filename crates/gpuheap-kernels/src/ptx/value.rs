//! Loads elements into registers, computes with them, and stores them. Types of 8 and 16 bits and
//! `Bool` are in 32-bit registers, sign-extended or zero-extended. After arithmetic, the upper bits
//! may have any value, because only the lower bits are stored.

use crate::ptx::writer::{Class, Reg, Writer, emit};
use crate::{Arithmetic, Comparison, Reduction, Type};

pub(super) fn class(of: Type) -> Class {
    match of {
        Type::F32 => Class::Float32,
        Type::F64 => Class::Float64,
        Type::I64 | Type::U64 => Class::Bits64,
        _ => Class::Bits32,
    }
}

/// Returns the PTX type with which elements are loaded and stored.
fn memory(of: Type) -> &'static str {
    match of {
        Type::Bool | Type::U8 => "u8",
        Type::I8 => "s8",
        Type::I16 => "s16",
        Type::U16 => "u16",
        _ => register(of),
    }
}

/// Returns the PTX type with which elements are computed.
fn register(of: Type) -> &'static str {
    match of {
        Type::I8 | Type::I16 | Type::I32 => "s32",
        Type::Bool | Type::U8 | Type::U16 | Type::U32 => "u32",
        Type::I64 => "s64",
        Type::U64 => "u64",
        Type::F32 => "f32",
        Type::F64 => "f64",
    }
}

/// Loads a scalar from the arguments.
pub(super) fn argument(w: &mut Writer, of: Type, index: usize) -> Reg {
    let value = w.reg(class(of));
    emit!(w, "ld.param.{} {value}, [args+{}];", memory(of), 8 * index);
    normalize_bool(w, of, value);
    value
}

pub(super) fn load(w: &mut Writer, of: Type, address: Reg) -> Reg {
    let value = w.reg(class(of));
    emit!(w, "ld.global.{} {value}, [{address}];", memory(of));
    normalize_bool(w, of, value);
    value
}

/// Loads an element if the predicate is true; otherwise the result is `otherwise`.
pub(super) fn load_if(
    w: &mut Writer,
    of: Type,
    predicate: Reg,
    (address, offset): (Reg, usize),
    otherwise: &str,
) -> Reg {
    let value = w.reg(class(of));
    emit!(w, "mov.{} {value}, {otherwise};", value.class.suffix());
    emit!(w, "@{predicate} ld.global.{} {value}, [{address}+{offset}];", memory(of));
    normalize_bool(w, of, value);
    value
}

/// Changes every nonzero byte of a `Bool` to 1.
fn normalize_bool(w: &mut Writer, of: Type, value: Reg) {
    if of == Type::Bool {
        emit!(w, "min.u32 {value}, {value}, 1;");
    }
}

pub(super) fn store(w: &mut Writer, of: Type, address: Reg, value: Reg) {
    emit!(w, "st.global.{} [{address}], {value};", unsigned(of));
}

pub(super) fn store_if(w: &mut Writer, of: Type, predicate: Reg, address: Reg, value: Reg) {
    emit!(w, "@{predicate} st.global.{} [{address}], {value};", unsigned(of));
}

fn unsigned(of: Type) -> &'static str {
    match of.size() {
        1 => "u8",
        2 => "u16",
        _ => memory(of),
    }
}

/// Loads adjacent elements. The address is a multiple of their total size, or of 16 bytes if the
/// total size is larger.
pub(super) fn load_vector(
    w: &mut Writer,
    of: Type,
    address: Reg,
    offset: usize,
    count: usize,
) -> Vec<Reg> {
    let (class, word) = (word_class(of), word_bytes(of));
    let words: Vec<Reg> = (0..count * of.size() / word).map(|_| w.reg(class)).collect();
    let mut offset = offset;
    for group in words.chunks(16 / word) {
        emit!(w, "ld.global{} {}, [{address}+{offset}];", shape(class, group), list(group));
        offset += word * group.len();
    }
    if of.size() >= 4 {
        return words;
    }
    let bits = 8 * of.size();
    let sign = if of.is_signed() { "s32" } else { "u32" };
    let mut values = Vec::with_capacity(count);
    for word in words {
        for at in (0..32).step_by(bits) {
            let value = w.reg(Class::Bits32);
            emit!(w, "bfe.{sign} {value}, {word}, {at}, {bits};");
            normalize_bool(w, of, value);
            values.push(value);
        }
    }
    values
}

/// Stores adjacent elements. The address is a multiple of their total size, or of 16 bytes if the
/// total size is larger.
pub(super) fn store_vector(w: &mut Writer, of: Type, address: Reg, values: &[Reg]) {
    let (class, bytes) = (word_class(of), word_bytes(of));
    let words: Vec<Reg> = if of.size() >= 4 {
        values.to_vec()
    } else {
        values.chunks(4 / of.size()).map(|values| pack(w, of, values)).collect()
    };
    let mut offset = 0;
    for group in words.chunks(16 / bytes) {
        emit!(w, "st.global{} [{address}+{offset}], {};", shape(class, group), list(group));
        offset += bytes * group.len();
    }
}

/// Packs elements of less than 32 bits into a word.
fn pack(w: &mut Writer, of: Type, values: &[Reg]) -> Reg {
    let (word, bits) = (w.reg(Class::Bits32), 8 * of.size());
    for (value, at) in values.iter().zip((0..).step_by(bits)) {
        if at == 0 {
            emit!(w, "and.b32 {word}, {value}, {};", (1_u64 << bits) - 1);
        } else {
            emit!(w, "bfi.b32 {word}, {value}, {word}, {at}, {bits};");
        }
    }
    word
}

fn word_class(of: Type) -> Class {
    if of.size() < 4 { Class::Bits32 } else { class(of) }
}

fn word_bytes(of: Type) -> usize {
    of.size().max(4)
}

/// Returns the number and type of the registers that a memory access moves.
fn shape(class: Class, group: &[Reg]) -> String {
    match group.len() {
        1 => format!(".{}", class.suffix()),
        count => format!(".v{count}.{}", class.suffix()),
    }
}

pub(super) fn list(group: &[Reg]) -> String {
    match group {
        [one] => one.to_string(),
        many => {
            let names: Vec<String> = many.iter().map(Reg::to_string).collect();
            format!("{{{}}}", names.join(", "))
        }
    }
}

/// Writes arithmetic with one rounding for each operation. `.rn` also keeps the assembler from
/// fusing two operations into one.
pub(super) fn arithmetic(w: &mut Writer, op: Arithmetic, of: Type, a: Reg, b: Reg) -> Reg {
    if op == Arithmetic::Divide && !of.is_float() {
        return if of.size() <= 2 { divide_small(w, of, a, b) } else { divide(w, of, a, b) };
    }
    let d = w.reg(class(of));
    let name = match (op, of.is_float()) {
        (Arithmetic::Add, true) => "add.rn",
        (Arithmetic::Subtract, true) => "sub.rn",
        (Arithmetic::Multiply, true) => "mul.rn",
        (Arithmetic::Divide, _) => "div.rn",
        (Arithmetic::Add, false) => "add",
        (Arithmetic::Subtract, false) => "sub",
        (Arithmetic::Multiply, false) => "mul.lo",
    };
    emit!(w, "{name}.{} {d}, {a}, {b};", register(of));
    d
}

/// Writes an integer division of 32 or 64 bits. A division by 0 gives 0. PTX does not define the
/// division of the smallest number by -1, so a negation replaces a division by -1.
fn divide(w: &mut Writer, of: Type, a: Reg, b: Reg) -> Reg {
    let (class, name) = (class(of), register(of));
    let [divisor, d, negated] = w.regs(class);
    let [zero, minus_one] = w.regs(Class::Predicate);
    let bits = class.suffix();
    emit!(w, "setp.eq.{name} {zero}, {b}, 0;");
    emit!(w, "selp.{bits} {divisor}, 1, {b}, {zero};");
    if of.is_signed() {
        emit!(w, "setp.eq.{name} {minus_one}, {b}, -1;");
        emit!(w, "selp.{bits} {divisor}, 1, {divisor}, {minus_one};");
    }
    emit!(w, "div.{name} {d}, {a}, {divisor};");
    if of.is_signed() {
        emit!(w, "neg.{name} {negated}, {a};");
        emit!(w, "selp.{bits} {d}, {negated}, {d}, {minus_one};");
    }
    emit!(w, "selp.{bits} {d}, 0, {d}, {zero};");
    d
}

/// Writes an integer division of 8 or 16 bits, computed with floats.
///
/// The errors of the reciprocal and the product together are below `2^-21` of the quotient. A whole
/// quotient may come out slightly too small, so `2^-18` of the quotient is added first. The
/// quotient is at most `2^16 / b`, so at most `1 / (4 * b)` is added. The next whole number is at
/// least `1 / b` away.
///
/// Integers and floats are converted by adding and subtracting `2^23` or `1.5 * 2^23`. A device
/// makes sixteen additions in the time of four conversion instructions. With conversion
/// instructions, i8 reached 0.73 of a copy's speed (H200).
fn divide_small(w: &mut Writer, of: Type, a: Reg, b: Reg) -> Reg {
    let [d, sign] = w.regs(Class::Bits32);
    let [zero, negative] = w.regs(Class::Predicate);
    let (x, y) = (small_float(w, a), small_float(w, b));
    emit!(w, "rcp.approx.ftz.f32 {y}, {y};");
    emit!(w, "mul.rn.f32 {x}, {x}, 0f3F800020;");
    emit!(w, "mul.rn.f32 {x}, {x}, {y};");
    // Floats from 2^23 on have no fraction, so adding 2^23 with `rz` cuts the fraction off. The
    // sign is removed first: 2^23 plus a negative quotient would be rounded the wrong way.
    emit!(w, "abs.f32 {x}, {x};");
    emit!(w, "add.rz.f32 {x}, {x}, 0f4B000000;");
    emit!(w, "mov.b32 {d}, {x};");
    emit!(w, "sub.s32 {d}, {d}, 0x4B000000;");
    if of.is_signed() {
        emit!(w, "xor.b32 {sign}, {a}, {b};");
        emit!(w, "setp.lt.s32 {negative}, {sign}, 0;");
        emit!(w, "@{negative} neg.s32 {d}, {d};");
    }
    emit!(w, "setp.eq.s32 {zero}, {b}, 0;");
    emit!(w, "selp.b32 {d}, 0, {d}, {zero};");
    d
}

/// Converts a signed integer of less than 22 bits to a float. Adds the integer to the bits of the
/// float `1.5 * 2^23`, and then subtracts that float.
fn small_float(w: &mut Writer, value: Reg) -> Reg {
    let (bits, float) = (w.reg(Class::Bits32), w.reg(Class::Float32));
    emit!(w, "add.s32 {bits}, {value}, 0x4B400000;");
    emit!(w, "mov.b32 {float}, {bits};");
    emit!(w, "sub.rn.f32 {float}, {float}, 0f4B400000;");
    float
}

/// Writes a comparison, whose result is 1 or 0.
pub(super) fn comparison(w: &mut Writer, op: Comparison, of: Type, a: Reg, b: Reg) -> Reg {
    let (holds, d) = (w.reg(Class::Predicate), w.reg(Class::Bits32));
    let name = match op {
        Comparison::Equal => "eq",
        // For floats, `neu` is true if an operand is NaN.
        Comparison::NotEqual if of.is_float() => "neu",
        Comparison::NotEqual => "ne",
        Comparison::Less => "lt",
        Comparison::LessEqual => "le",
        Comparison::Greater => "gt",
        Comparison::GreaterEqual => "ge",
    };
    emit!(w, "setp.{name}.{} {holds}, {a}, {b};", register(of));
    emit!(w, "selp.b32 {d}, 1, 0, {holds};");
    d
}

/// Converts a value to another type, like Rust's `as`.
pub(super) fn cast(w: &mut Writer, from: Type, to: Type, a: Reg) -> Reg {
    if from == to {
        return a;
    }
    let d = w.reg(class(to));
    let (source, target) = (register(from), register(to));
    match (from.is_float(), to.is_float()) {
        _ if to == Type::Bool => {
            let holds = w.reg(Class::Predicate);
            let (name, zero) = match from {
                Type::F32 => ("neu", "0f00000000"),
                Type::F64 => ("neu", "0d0000000000000000"),
                _ => ("ne", "0"),
            };
            emit!(w, "setp.{name}.{source} {holds}, {a}, {zero};");
            emit!(w, "selp.b32 {d}, 1, 0, {holds};");
        }
        (false, false) => match (a.class, d.class) {
            (Class::Bits32, Class::Bits64) => emit!(
                w,
                "cvt.{target}.{source} {d}, {a};",
                target = if from.is_signed() { "s64" } else { "u64" }
            ),
            (Class::Bits64, Class::Bits32) => emit!(w, "cvt.u32.u64 {d}, {a};"),
            _ => emit!(w, "mov.{} {d}, {a};", d.class.suffix()),
        },
        (false, true) => emit!(w, "cvt.rn.{target}.{source} {d}, {a};"),
        (true, true) if from == Type::F32 => emit!(w, "cvt.f64.f32 {d}, {a};"),
        (true, true) => emit!(w, "cvt.rn.f32.f64 {d}, {a};"),
        (true, false) => {
            emit!(w, "cvt.rzi.{target}.{source} {d}, {a};");
            let limits = match to {
                Type::I8 => Some((-128, 127)),
                Type::I16 => Some((-32_768, 32_767)),
                Type::U8 => Some((0, 255)),
                Type::U16 => Some((0, 65_535)),
                _ => None,
            };
            if let Some((least, greatest)) = limits {
                if to.is_signed() {
                    emit!(w, "max.s32 {d}, {d}, {least};");
                }
                emit!(w, "min.{target} {d}, {d}, {greatest};");
            }
            // A NaN becomes 0. The conversion instruction does that for some types only.
            let nan = w.reg(Class::Predicate);
            emit!(w, "setp.nan.{source} {nan}, {a}, {a};");
            emit!(w, "selp.{} {d}, 0, {d}, {nan};", d.class.suffix());
        }
    }
    d
}

/// Returns the neutral value with which a reduction starts. `of` is the type of the values or of
/// the result.
pub(super) fn identity(op: Reduction, of: Type) -> String {
    let least = matches!(op, Reduction::Max | Reduction::Any);
    match op {
        Reduction::Sum | Reduction::Total => zero(of),
        // The reduction only tests whether values are 0, so 1 and 0 of any type can be used.
        Reduction::All if of != Type::Bool => one(of),
        Reduction::Any if of != Type::Bool => zero(of),
        Reduction::Min | Reduction::All | Reduction::Max | Reduction::Any => match of {
            Type::F32 if least => "0fFF800000".into(),
            Type::F32 => "0f7F800000".into(),
            Type::F64 if least => "0dFFF0000000000000".into(),
            Type::F64 => "0d7FF0000000000000".into(),
            Type::Bool => if least { "0" } else { "1" }.into(),
            of if of.is_signed() => {
                let greatest = i64::MAX >> (64 - 8 * of.size());
                (if least { -greatest - 1 } else { greatest }).to_string()
            }
            of => if least { 0 } else { u64::MAX >> (64 - 8 * of.size()) }.to_string(),
        },
    }
}

pub(super) fn zero(of: Type) -> String {
    match of {
        Type::F32 => "0f00000000".into(),
        Type::F64 => "0d0000000000000000".into(),
        _ => "0".into(),
    }
}

fn one(of: Type) -> String {
    match of {
        Type::F32 => "0f3F800000".into(),
        Type::F64 => "0d3FF0000000000000".into(),
        _ => "1".into(),
    }
}

/// Combines two values of the result's type, and stores the result in `into`.
pub(super) fn combine(w: &mut Writer, op: Reduction, of: Type, into: Reg, other: Reg) {
    let name = register(of);
    let extreme = match op {
        Reduction::Sum | Reduction::Total => {
            let round = if of.is_float() { ".rn" } else { "" };
            return emit!(w, "add{round}.{name} {into}, {into}, {other};");
        }
        Reduction::Min | Reduction::All => "min",
        Reduction::Max | Reduction::Any => "max",
    };
    if !of.is_float() {
        return emit!(w, "{extreme}.{name} {into}, {into}, {other};");
    }
    // If one operand is a NaN, the instruction returns the other operand, so NaN needs more code.
    let nan = w.reg(Class::Predicate);
    let quiet = if of == Type::F32 { "0f7FC00000" } else { "0d7FF8000000000000" };
    emit!(w, "setp.nan.{name} {nan}, {into}, {other};");
    emit!(w, "{extreme}.{name} {into}, {into}, {other};");
    emit!(w, "selp.{name} {into}, {quiet}, {into}, {nan};");
}
