//! PTX of the kernels that copy rows by index.

use crate::Kernel;
use crate::ptx::strided::registers;
use crate::ptx::value::list;
use crate::ptx::writer::{Class, MAXWELL, Writer, emit};

pub(super) fn take(kernel: &Kernel, unit: usize) -> String {
    let mut w = Writer::default();
    let w = &mut w;
    let (count, rows) = (w.word(0), w.word(4));
    let [out, input, indices] = [1, 2, 3].map(|index| w.address(index));
    let (place, threads) = w.thread_of_all();
    let [done, known] = w.regs(Class::Predicate);
    let (again, end) = (w.label(), w.label());
    let (index32, index) = (w.reg(Class::Bits32), w.reg(Class::Bits64));
    w.place(again);
    emit!(w, "setp.ge.u64 {done}, {place}, {count};");
    emit!(w, "@{done} bra {end};");
    let from = w.at(indices, place, 4);
    emit!(w, "ld.global.u32 {index32}, [{from}];");
    emit!(w, "cvt.u64.u32 {index}, {index32};");
    emit!(w, "setp.lt.u64 {known}, {index}, {rows};");
    let (shape, value) = registers(w, unit);
    for register in &value {
        emit!(w, "mov.{} {register}, 0;", register.class.suffix());
    }
    let value = list(&value);
    let (from, to) = (w.at(input, index, unit), w.at(out, place, unit));
    emit!(w, "@{known} ld.global.{shape} {value}, [{from}];");
    emit!(w, "st.global.{shape} [{to}], {value};");
    emit!(w, "add.u64 {place}, {place}, {threads};");
    emit!(w, "bra {again};");
    w.place(end);
    w.module(kernel, MAXWELL, None)
}
