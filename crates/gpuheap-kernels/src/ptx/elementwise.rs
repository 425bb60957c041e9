//! Writes flat kernels. Elements are adjacent in all arrays. If the addresses allow it, a kernel
//! reads elements in vectors of up to 16 bytes, otherwise one by one.

use crate::kernel::{Does, Source};
use crate::ptx::value::{
    argument, arithmetic, cast as cast_value, comparison, load, load_vector, store, store_vector,
};
use crate::ptx::writer::{Class, MAXWELL, Reg, Writer, emit};
use crate::threads::flat_each;
use crate::{Kernel, Type};

/// An operand and its type. `reg` has the address of an array, or the value of a scalar.
#[derive(Clone, Copy)]
struct Input {
    source: Source,
    reg: Reg,
    of: Type,
}

pub(super) fn flat(kernel: &Kernel, does: Does, of: Type, sources: [Source; 2]) -> String {
    let mut w = Writer::default();
    let out = w.address(1);
    let inputs = [0, 1].map(|i| {
        let reg = match sources[i] {
            Source::Array => w.address(2 + i),
            Source::Scalar => argument(&mut w, of, 2 + i),
        };
        Input { source: sources[i], reg, of }
    });
    body(&mut w, (out, does.output(of)), &inputs, |w, values| compute(w, does, of, values));
    w.module(kernel, MAXWELL, None)
}

pub(super) fn cast(kernel: &Kernel, from: Type, to: Type) -> String {
    let mut w = Writer::default();
    let (out, input) = (w.address(1), w.address(2));
    let input = Input { source: Source::Array, reg: input, of: from };
    body(&mut w, (out, to), &[input], |w, values| cast_value(w, from, to, values[0]));
    w.module(kernel, MAXWELL, None)
}

pub(super) fn compute(w: &mut Writer, does: Does, of: Type, values: &[Reg]) -> Reg {
    match does {
        Does::Arithmetic(op) => arithmetic(w, op, of, values[0], values[1]),
        Does::Comparison(op) => comparison(w, op, of, values[0], values[1]),
    }
}

fn body(
    w: &mut Writer,
    (out, out_of): (Reg, Type),
    inputs: &[Input],
    compute: impl Fn(&mut Writer, &[Reg]) -> Reg,
) {
    let each = inputs.iter().map(|input| flat_each(input.of, out_of)).min().unwrap_or(1) as usize;
    let arrays: Vec<Input> =
        inputs.iter().copied().filter(|input| input.source == Source::Array).collect();
    let count = w.word(0);
    let (thread, threads) = w.thread_of_all();
    let [vectors, index, rest] = w.regs(Class::Bits64);
    let done = w.reg(Class::Predicate);
    let (singly, end) = (w.label(), w.label());
    emit!(w, "mov.u64 {index}, {thread};");
    unless_aligned(w, out, &arrays, out_of, each, singly);

    // Whole vectors are handled first.
    emit!(w, "shr.u64 {vectors}, {count}, {};", each.ilog2());
    let (again, tail) = (w.label(), w.label());
    w.place(again);
    emit!(w, "setp.ge.u64 {done}, {index}, {vectors};");
    emit!(w, "@{done} bra {tail};");
    let to = w.at(out, index, each * out_of.size());
    let operands: Vec<Vec<Reg>> = inputs
        .iter()
        .map(|input| match input.source {
            Source::Scalar => vec![input.reg; each],
            Source::Array => {
                let from = w.at(input.reg, index, each * input.of.size());
                load_vector(w, input.of, from, 0, each)
            }
        })
        .collect();
    let results: Vec<Reg> = (0..each)
        .map(|i| {
            let values: Vec<Reg> = operands.iter().map(|operand| operand[i]).collect();
            compute(w, &values)
        })
        .collect();
    store_vector(w, out_of, to, &results);
    emit!(w, "add.u64 {index}, {index}, {threads};");
    emit!(w, "bra {again};");

    // Handles the remaining elements. They do not fill a vector.
    w.place(tail);
    emit!(w, "shl.b64 {rest}, {vectors}, {};", each.ilog2());
    emit!(w, "add.u64 {index}, {rest}, {thread};");

    w.place(singly);
    emit!(w, "setp.ge.u64 {done}, {index}, {count};");
    emit!(w, "@{done} bra {end};");
    let to = w.at(out, index, out_of.size());
    let values: Vec<Reg> = inputs
        .iter()
        .map(|input| match input.source {
            Source::Scalar => input.reg,
            Source::Array => {
                let from = w.at(input.reg, index, input.of.size());
                load(w, input.of, from)
            }
        })
        .collect();
    let result = compute(w, &values);
    store(w, out_of, to, result);
    emit!(w, "add.u64 {index}, {index}, {threads};");
    emit!(w, "bra {singly};");
    w.place(end);
}

/// Jumps to `away` unless every array is aligned for its vectors. The alignment is the size of the
/// vector, but at most 16 bytes.
fn unless_aligned(
    w: &mut Writer,
    out: Reg,
    arrays: &[Input],
    out_of: Type,
    each: usize,
    away: crate::ptx::writer::Label,
) {
    let mask = |of: Type| (each * of.size()).min(16) - 1;
    let (all, unaligned) = (w.reg(Class::Bits64), w.reg(Class::Predicate));
    emit!(w, "and.b64 {all}, {out}, {};", mask(out_of));
    for array in arrays {
        let bits = w.reg(Class::Bits64);
        emit!(w, "and.b64 {bits}, {}, {};", array.reg, mask(array.of));
        emit!(w, "or.b64 {all}, {all}, {bits};");
    }
    emit!(w, "setp.ne.u64 {unaligned}, {all}, 0;");
    emit!(w, "@{unaligned} bra {away};");
}
