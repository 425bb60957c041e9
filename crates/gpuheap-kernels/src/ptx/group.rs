//! Sums by key. If all sums fit, each block first adds in its shared memory. Otherwise all
//! additions are in global memory.

use crate::ptx::value::{cast, load};
use crate::ptx::writer::{Class, MAXWELL, PASCAL, Reg, Writer, emit};
use crate::threads::{BLOCK, SHARED_BYTES};
use crate::{Kernel, Reduction, Type};

pub(super) fn group(kernel: &Kernel, shared: bool, of: Option<Type>, key: Type) -> String {
    let mut w = Writer::default();
    let w = &mut w;
    let to = of.map_or(Type::U64, |of| Reduction::Sum.output(of));
    // Integers wrap, so one addition serves both signs.
    let add = if to.is_float() { "add.f64" } else { "add.u64" };
    let [rows, inner, groups] = [0, 1, 2].map(|index| w.word(index));
    let [out, values, keys, bad] = [3, 4, 5, 6].map(|index| w.address(index));
    let sums = shared.then(|| own_sums(w, groups, inner));
    if let Some(sums) = sums {
        for_each_own(w, sums, |w, place, _| emit!(w, "st.shared.u64 [{place}], 0;"));
        emit!(w, "bar.sync 0;");
    }

    let (index, threads) = w.thread_of_all();
    let all = w.reg(Class::Bits64);
    let [done, known, later] = w.regs(Class::Predicate);
    let (again, good, next, end) = (w.label(), w.label(), w.label(), w.label());
    emit!(w, "mul.lo.u64 {all}, {rows}, {inner};");
    w.place(again);
    emit!(w, "setp.ge.u64 {done}, {index}, {all};");
    emit!(w, "@{done} bra {end};");
    let (row, column) = w.divide_unless_one(index, inner);
    let from = w.at(keys, row, key.size());
    let found = load(w, key, from);
    // A negative key becomes a large unsigned one, so the comparison below rejects it too.
    let found = cast(w, key, if key.is_signed() { Type::I64 } else { Type::U64 }, found);
    emit!(w, "setp.lt.u64 {known}, {found}, {groups};");
    emit!(w, "@{known} bra {good};");
    emit!(w, "setp.ne.u64 {later}, {column}, 0;");
    emit!(w, "@{later} bra {next};");
    emit!(w, "red.global.add.u64 [{bad}], 1;");
    emit!(w, "red.global.min.u64 [{bad}+8], {row};");
    emit!(w, "bra {next};");

    w.place(good);
    let value = match of {
        Some(of) => {
            let from = w.at(values, index, of.size());
            let value = load(w, of, from);
            cast(w, of, to, value)
        }
        None => {
            let one = w.reg(Class::Bits64);
            emit!(w, "mov.u64 {one}, 1;");
            one
        }
    };
    let slot = w.reg(Class::Bits64);
    emit!(w, "mad.lo.s64 {slot}, {found}, {inner}, {column};");
    match sums {
        Some(sums) => {
            let [slot32, place] = w.regs(Class::Bits32);
            emit!(w, "cvt.u32.u64 {slot32}, {slot};");
            emit!(w, "mad.lo.u32 {place}, {slot32}, 8, {};", sums.first);
            emit!(w, "red.shared.{add} [{place}], {value};");
        }
        None => {
            let place = w.at(out, slot, 8);
            emit!(w, "red.global.{add} [{place}], {value};");
        }
    }
    w.place(next);
    emit!(w, "add.u64 {index}, {index}, {threads};");
    emit!(w, "bra {again};");
    w.place(end);

    if let Some(sums) = sums {
        emit!(w, "bar.sync 0;");
        for_each_own(w, sums, |w, place, index| {
            let [bits, total] =
                [Class::Bits64, crate::ptx::value::class(to)].map(|class| w.reg(class));
            let nothing = w.reg(Class::Predicate);
            emit!(w, "ld.shared.b64 {bits}, [{place}];");
            emit!(w, "setp.eq.u64 {nothing}, {bits}, 0;");
            emit!(w, "mov.b64 {total}, {bits};");
            let into = w.at(out, index, 8);
            emit!(w, "@!{nothing} red.global.{add} [{into}], {total};");
        });
    }
    let target = if to.is_float() { PASCAL } else { MAXWELL };
    w.module(kernel, target, shared.then_some(SHARED_BYTES))
}

/// Sums that one block keeps in shared memory.
#[derive(Clone, Copy)]
struct Sums {
    /// Address of the first sum.
    first: Reg,
    count: Reg,
}

fn own_sums(w: &mut Writer, groups: Reg, inner: Reg) -> Sums {
    let slots = w.reg(Class::Bits64);
    let [first, count] = w.regs(Class::Bits32);
    emit!(w, "mul.lo.u64 {slots}, {groups}, {inner};");
    emit!(w, "cvt.u32.u64 {count}, {slots};");
    emit!(w, "mov.u32 {first}, sums;");
    Sums { first, count }
}

/// Divides the block's sums among its threads. `work` receives the address and the index of each
/// sum.
fn for_each_own(w: &mut Writer, sums: Sums, work: impl Fn(&mut Writer, Reg, Reg)) {
    let index = w.special("tid.x");
    let place = w.reg(Class::Bits32);
    let done = w.reg(Class::Predicate);
    let (again, end) = (w.label(), w.label());
    w.place(again);
    emit!(w, "setp.ge.u32 {done}, {index}, {};", sums.count);
    emit!(w, "@{done} bra {end};");
    emit!(w, "mad.lo.u32 {place}, {index}, 8, {};", sums.first);
    work(w, place, index);
    emit!(w, "add.u32 {index}, {index}, {BLOCK};");
    emit!(w, "bra {again};");
    w.place(end);
}
