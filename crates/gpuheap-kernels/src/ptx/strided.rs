//! Writes strided kernels. They compute an element's coordinates by division, and its addresses
//! from the strides.

use crate::axes::{AXIS_WORDS, FIRST_AXIS, MOST_AXES};
use crate::kernel::{Does, Source};
use crate::ptx::elementwise::compute;
use crate::ptx::value::{argument, list, load, load_if, load_vector, store_if, store_vector, zero};
use crate::ptx::writer::{Class, MAXWELL, Reg, Writer, emit};
use crate::threads::{BLOCK, STRIDED_EACH, flat_each};
use crate::{Kernel, Type};

/// Registers that describe one of the elements that a thread handles at a time.
#[derive(Clone, Copy)]
struct Place {
    exists: Reg,
    /// Index in row-major order.
    index: Reg,
    /// Offsets in both arrays, in bytes.
    offsets: [Reg; 2],
}

pub(super) fn elementwise(kernel: &Kernel, does: Does, of: Type, sources: [Source; 2]) -> String {
    let mut w = Writer::default();
    let (out, inputs) = operands(&mut w, of, sources);
    let out_of = does.output(of);
    body(&mut w, STRIDED_EACH, |w, places| {
        let mut values = Vec::new();
        for place in places {
            values.push([0, 1].map(|i| match sources[i] {
                Source::Scalar => inputs[i],
                Source::Array => {
                    let from = w.reg(Class::Bits64);
                    emit!(w, "add.s64 {from}, {}, {};", inputs[i], place.offsets[i]);
                    load_if(w, of, place.exists, (from, 0), &zero(of))
                }
            }));
        }
        for (place, values) in places.iter().zip(values) {
            let result = compute(w, does, of, &values);
            let to = w.at(out, place.index, out_of.size());
            store_if(w, out_of, place.exists, to, result);
        }
    });
    w.module(kernel, MAXWELL, None)
}

/// Writes a kernel that reads a vector of each operand along the innermost axis. The vector is
/// loaded from memory, or is one element repeated.
pub(super) fn vectors(kernel: &Kernel, does: Does, of: Type, sources: [Source; 2]) -> String {
    let mut w = Writer::default();
    let (out, inputs) = operands(&mut w, of, sources);
    let out_of = does.output(of);
    let each = flat_each(of, out_of) as usize;
    body(&mut w, 1, |w, places| {
        for place in places {
            let operands = [0, 1].map(|i| match sources[i] {
                Source::Scalar => vec![inputs[i]; each],
                Source::Array => {
                    let from = w.reg(Class::Bits64);
                    emit!(w, "add.s64 {from}, {}, {};", inputs[i], place.offsets[i]);
                    let stride = w.word(FIRST_AXIS + 2 + i);
                    vector_or_one(w, of, from, stride, each)
                }
            });
            let results: Vec<Reg> = (0..each)
                .map(|i| compute(w, does, of, &[operands[0][i], operands[1][i]]))
                .collect();
            let to = w.at(out, place.index, each * out_of.size());
            store_vector(w, out_of, to, &results);
        }
    });
    w.module(kernel, MAXWELL, None)
}

fn vector_or_one(w: &mut Writer, of: Type, from: Reg, stride: Reg, each: usize) -> Vec<Reg> {
    let one = w.reg(Class::Predicate);
    let (again, done) = (w.label(), w.label());
    emit!(w, "setp.eq.u64 {one}, {stride}, 0;");
    emit!(w, "@{one} bra {again};");
    let values = load_vector(w, of, from, 0, each);
    emit!(w, "bra {done};");
    w.place(again);
    let value = load(w, of, from);
    values.iter().for_each(|copy| emit!(w, "mov.{} {copy}, {value};", value.class.suffix()));
    w.place(done);
    values
}

/// Returns the address of the result, and the two operands. For an array operand, returns its
/// address; for a scalar operand, its value.
fn operands(w: &mut Writer, of: Type, sources: [Source; 2]) -> (Reg, [Reg; 2]) {
    let out = w.address(2);
    let inputs = [0, 1].map(|i| match sources[i] {
        Source::Array => w.address(3 + i),
        Source::Scalar => argument(w, of, 3 + i),
    });
    (out, inputs)
}

pub(super) fn copy(kernel: &Kernel, unit: usize) -> String {
    let mut w = Writer::default();
    let [out, input] = [3, 4].map(|index| w.address(index));
    body(&mut w, STRIDED_EACH, |w, places| {
        let mut values = Vec::new();
        for place in places {
            let from = w.reg(Class::Bits64);
            emit!(w, "add.s64 {from}, {input}, {};", place.offsets[1]);
            let (shape, value) = registers(w, unit);
            let value = list(&value);
            emit!(w, "@{} ld.global.{shape} {value}, [{from}];", place.exists);
            values.push((shape, value));
        }
        for (place, (shape, value)) in places.iter().zip(values) {
            let to = w.reg(Class::Bits64);
            emit!(w, "add.s64 {to}, {out}, {};", place.offsets[0]);
            emit!(w, "@{} st.global.{shape} [{to}], {value};", place.exists);
        }
    });
    w.module(kernel, MAXWELL, None)
}

/// Returns the PTX type and the registers with which a kernel loads `unit` bytes at once.
pub(super) fn registers(w: &mut Writer, unit: usize) -> (&'static str, Vec<Reg>) {
    let (class, shape, count) = match unit {
        1 => (Class::Bits32, "u8", 1),
        2 => (Class::Bits32, "u16", 1),
        4 => (Class::Bits32, "b32", 1),
        8 => (Class::Bits64, "b64", 1),
        _ => (Class::Bits32, "v4.b32", 4),
    };
    (shape, (0..count).map(|_| w.reg(class)).collect())
}

/// Writes a loop over all elements. The number of elements is below 2^31. The grid is so small that
/// an index beyond the last element stays below 2^32.
fn body(w: &mut Writer, each: u64, work: impl Fn(&mut Writer, &[Place])) {
    let count = w.word32(0);
    let rank = w.word32(1);
    let [thread, block, blocks] = ["tid.x", "ctaid.x", "nctaid.x"].map(|name| w.special(name));
    let [first, step] = w.regs(Class::Bits32);
    let done = w.reg(Class::Predicate);
    let (again, found, end) = (w.label(), w.label(), w.label());
    let tile = u64::from(BLOCK) * each;
    emit!(w, "mad.lo.u32 {first}, {block}, {tile}, {thread};");
    emit!(w, "mul.lo.u32 {step}, {blocks}, {tile};");
    w.place(again);
    emit!(w, "setp.ge.u32 {done}, {first}, {count};");
    emit!(w, "@{done} bra {end};");
    let mut rests = Vec::new();
    let places: Vec<Place> = (0..each)
        .map(|i| {
            let [index, rest] = w.regs(Class::Bits32);
            let place =
                Place { exists: w.reg(Class::Predicate), index, offsets: w.regs(Class::Bits64) };
            emit!(w, "add.u32 {index}, {first}, {};", i * u64::from(BLOCK));
            emit!(w, "setp.lt.u32 {}, {index}, {count};", place.exists);
            emit!(w, "mov.u32 {rest}, {index};");
            place.offsets.iter().for_each(|offset| emit!(w, "mov.u64 {offset}, 0;"));
            rests.push(rest);
            place
        })
        .collect();
    for axis in 0..MOST_AXES {
        emit!(w, "setp.le.u32 {done}, {rank}, {axis};");
        emit!(w, "@{done} bra {found};");
        coordinates(w, axis, &places, &rests);
    }
    w.place(found);
    work(w, &places);
    emit!(w, "add.u32 {first}, {first}, {step};");
    emit!(w, "bra {again};");
    w.place(end);
}

/// Divides each remaining index in `rests` by the length of `axis`. The remainder is the coordinate
/// along the axis, and the quotient stays in `rests`. `axis` is the innermost axis not yet handled.
fn coordinates(w: &mut Writer, axis: usize, places: &[Place], rests: &[Reg]) {
    let at = FIRST_AXIS + AXIS_WORDS * axis;
    let length = w.word32(at);
    let shift = w.reg(Class::Bits32);
    emit!(w, "ld.param.b32 {shift}, [args+{}];", 8 * at + 4);
    let factor = w.word32(at + 1);
    let strides = [w.word(at + 2), w.word(at + 3)];
    for (place, rest) in places.iter().zip(rests) {
        let [quotient, coordinate] = w.regs(Class::Bits32);
        let wide = w.reg(Class::Bits64);
        emit!(w, "mul.hi.u32 {quotient}, {rest}, {factor};");
        emit!(w, "add.u32 {quotient}, {quotient}, {rest};");
        emit!(w, "shr.u32 {quotient}, {quotient}, {shift};");
        emit!(w, "mul.lo.u32 {coordinate}, {quotient}, {length};");
        emit!(w, "sub.u32 {coordinate}, {rest}, {coordinate};");
        emit!(w, "mov.u32 {rest}, {quotient};");
        emit!(w, "cvt.u64.u32 {wide}, {coordinate};");
        for (offset, stride) in place.offsets.iter().zip(strides) {
            emit!(w, "mad.lo.s64 {offset}, {wide}, {stride}, {offset};");
        }
    }
}
