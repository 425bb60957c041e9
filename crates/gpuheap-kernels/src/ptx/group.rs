//! Writes kernels that aggregate by key. If all aggregates fit into shared memory, each block first
//! forms its own aggregates there. Otherwise all additions are in global memory.

use crate::ptx::value::{cast, class, combine, load};
use crate::ptx::writer::{Class, Label, MAXWELL, PASCAL, Reg, Writer, emit};
use crate::threads::{BLOCK, SHARED_BYTES};
use crate::{Fold, Kernel, Type};

pub(super) fn group(
    kernel: &Kernel,
    shared: bool,
    fold: Fold,
    of: Option<Type>,
    key: Type,
) -> String {
    let mut w = Writer::default();
    let w = &mut w;
    let to = fold.output(of.unwrap_or(Type::U64));
    let identity = fold.identity(of.unwrap_or(Type::U64));
    let [rows, inner, groups] = [0, 1, 2].map(|index| w.word(index));
    let [out, values, keys, bad, valid, means] = [3, 4, 5, 6, 7, 8].map(|index| w.address(index));
    let own = shared.then(|| OwnTotals::new(w, groups, inner));
    if let Some(own) = &own {
        let all = w.reg(Class::Bits32);
        emit!(w, "mul.lo.u32 {all}, {}, {};", own.count, own.copies);
        for_each_own(w, own.first, all, |w, place, _| {
            emit!(w, "st.shared.u64 [{place}], {identity};");
        });
        emit!(w, "bar.sync 0;");
    }

    let (index, threads) = w.thread_of_all();
    let [all, bit] = w.regs(Class::Bits64);
    let [byte, shift] = w.regs(Class::Bits32);
    let [done, known, skipped] = w.regs(Class::Predicate);
    let (again, present, good, next, end) = (w.label(), w.label(), w.label(), w.label(), w.label());
    emit!(w, "mul.lo.u64 {all}, {rows}, {inner};");
    w.place(again);
    emit!(w, "setp.ge.u64 {done}, {index}, {all};");
    emit!(w, "@{done} bra {end};");
    let (row, column) = w.divide_unless_one(index, inner);
    let from = w.at(keys, row, key.size());
    let found = load(w, key, from);
    // A negative key becomes a large unsigned number, so the comparison below rejects it too.
    let found = cast(w, key, if key.is_signed() { Type::I64 } else { Type::U64 }, found);
    emit!(w, "setp.lt.u64 {known}, {found}, {groups};");
    emit!(w, "@{known} bra {good};");
    emit!(w, "setp.ne.u64 {skipped}, {column}, 0;");
    emit!(w, "@{skipped} bra {next};");
    emit!(w, "setp.eq.u64 {skipped}, {bad}, 0;");
    emit!(w, "@{skipped} bra {next};");
    emit!(w, "red.global.add.u64 [{bad}], 1;");
    emit!(w, "red.global.min.u64 [{bad}+8], {row};");
    emit!(w, "bra {next};");

    w.place(good);
    emit!(w, "setp.eq.u64 {skipped}, {valid}, 0;");
    emit!(w, "@{skipped} bra {present};");
    emit!(w, "shr.u64 {bit}, {index}, 3;");
    emit!(w, "add.u64 {bit}, {bit}, {valid};");
    emit!(w, "ld.global.u8 {byte}, [{bit}];");
    emit!(w, "cvt.u32.u64 {shift}, {index};");
    emit!(w, "and.b32 {shift}, {shift}, 7;");
    emit!(w, "shr.u32 {byte}, {byte}, {shift};");
    emit!(w, "and.b32 {byte}, {byte}, 1;");
    emit!(w, "setp.eq.u32 {skipped}, {byte}, 0;");
    emit!(w, "@{skipped} bra {next};");
    w.place(present);
    let slot = w.reg(Class::Bits64);
    emit!(w, "mad.lo.s64 {slot}, {found}, {inner}, {column};");
    let value = of.map(|of| {
        let from = w.at(values, index, of.size());
        let value = load(w, of, from);
        skip_nan(w, fold, of, value, next);
        value
    });
    let value = match (value.zip(of), fold) {
        (Some((value, of)), Fold::Squares) => {
            let [mean, square] = w.regs(Class::Float64);
            let value = cast(w, of, Type::F64, value);
            let from = w.at(means, slot, 8);
            emit!(w, "ld.global.f64 {mean}, [{from}];");
            emit!(w, "sub.rn.f64 {mean}, {value}, {mean};");
            emit!(w, "mul.rn.f64 {square}, {mean}, {mean};");
            square
        }
        (Some((value, of)), Fold::Sum | Fold::Min | Fold::Max) => cast(w, of, to, value),
        _ => {
            let one = w.reg(Class::Bits64);
            emit!(w, "mov.u64 {one}, 1;");
            one
        }
    };
    match &own {
        Some(own) => {
            let [slot32, place] = w.regs(Class::Bits32);
            emit!(w, "cvt.u32.u64 {slot32}, {slot};");
            emit!(w, "mad.lo.u32 {place}, {slot32}, 8, {};", own.of_thread);
            fold_into(w, fold, to, ("shared", place), value);
        }
        None => {
            let place = w.at(out, slot, 8);
            fold_into(w, fold, to, ("global", place), value);
        }
    }
    w.place(next);
    emit!(w, "add.u64 {index}, {index}, {threads};");
    emit!(w, "bra {again};");
    w.place(end);

    if let Some(own) = &own {
        emit!(w, "bar.sync 0;");
        for_each_own(w, own.first, own.count, |w, place, index| {
            let bits = w.reg(Class::Bits64);
            let [total, other] = [0; 2].map(|_| w.reg(class(to)));
            let [copy, at] = w.regs(Class::Bits32);
            let [nothing, ended] = w.regs(Class::Predicate);
            let (again, end) = (w.label(), w.label());
            emit!(w, "ld.shared.{} {total}, [{place}];", total.class.suffix());
            emit!(w, "mov.u32 {copy}, 1;");
            emit!(w, "mov.u32 {at}, {place};");
            w.place(again);
            emit!(w, "setp.ge.u32 {ended}, {copy}, {};", own.copies);
            emit!(w, "@{ended} bra {end};");
            emit!(w, "mad.lo.u32 {at}, {}, 8, {at};", own.count);
            emit!(w, "ld.shared.{} {other}, [{at}];", other.class.suffix());
            combine(w, fold.reduction(), to, total, other);
            emit!(w, "add.u32 {copy}, {copy}, 1;");
            emit!(w, "bra {again};");
            w.place(end);
            let skip = w.label();
            emit!(w, "mov.b64 {bits}, {total};");
            emit!(w, "setp.eq.u64 {nothing}, {bits}, {identity};");
            emit!(w, "@{nothing} bra {skip};");
            let into = w.at(out, index, 8);
            fold_into(w, fold, to, ("global", into), total);
            w.place(skip);
        });
    }
    let adds_doubles = to.is_float() && matches!(fold, Fold::Sum | Fold::Squares);
    let target = if adds_doubles { PASCAL } else { MAXWELL };
    w.module(kernel, target, shared.then_some(SHARED_BYTES))
}

/// Jumps to `next` if a value is a NaN and the fold leaves out NaNs.
fn skip_nan(w: &mut Writer, fold: Fold, of: Type, value: Reg, next: Label) {
    let name = match of {
        Type::F32 => "f32",
        Type::F64 => "f64",
        _ => return,
    };
    let nan = w.reg(Class::Predicate);
    emit!(w, "setp.nan.{name} {nan}, {value}, {value};");
    if !matches!(fold, Fold::Min | Fold::Max) {
        let (skips, wanted) = (w.reg(Class::Predicate), w.word(10));
        emit!(w, "setp.ne.u64 {skips}, {wanted}, 0;");
        emit!(w, "and.pred {nan}, {nan}, {skips};");
    }
    emit!(w, "@{nan} bra {next};");
}

/// Folds a value into an aggregate in shared or global memory.
fn fold_into(w: &mut Writer, fold: Fold, of: Type, (space, place): (&str, Reg), value: Reg) {
    // Integers wrap, so one addition serves both signs.
    let add = if of.is_float() { "add.f64" } else { "add.u64" };
    let (op, opposite) = match fold {
        Fold::Count | Fold::Sum | Fold::Squares => {
            return emit!(w, "red.{space}.{add} [{place}], {value};");
        }
        Fold::Min => ("min", "max"),
        Fold::Max => ("max", "min"),
    };
    if !of.is_float() {
        let sign = if of.is_signed() { "s64" } else { "u64" };
        return emit!(w, "red.{space}.{op}.{sign} [{place}], {value};");
    }
    // `red` has no min and max of 64-bit floats, so their bits are compared as integers. The
    // integers are signed if `value` is positive, and unsigned if it is negative. For a negative
    // `value`, min and max are swapped.
    let (bits, negative) = (w.reg(Class::Bits64), w.reg(Class::Predicate));
    emit!(w, "mov.b64 {bits}, {value};");
    emit!(w, "setp.lt.s64 {negative}, {bits}, 0;");
    emit!(w, "@!{negative} red.{space}.{op}.s64 [{place}], {bits};");
    emit!(w, "@{negative} red.{space}.{opposite}.u64 [{place}], {bits};");
}

/// Aggregates that one block keeps in shared memory. There are several copies of all aggregates, so
/// that fewer threads add to the same address.
struct OwnTotals {
    /// Address of the first copy of the aggregates.
    first: Reg,
    /// Address of the copy of the aggregates to which this thread adds its values.
    of_thread: Reg,
    /// Number of aggregates in one copy.
    count: Reg,
    copies: Reg,
}

impl OwnTotals {
    fn new(w: &mut Writer, groups: Reg, inner: Reg) -> OwnTotals {
        let slots = w.reg(Class::Bits64);
        let [first, of_thread, count, copies, copy] = w.regs(Class::Bits32);
        let last = w.word32(9);
        let thread = w.special("tid.x");
        emit!(w, "mul.lo.u64 {slots}, {groups}, {inner};");
        emit!(w, "cvt.u32.u64 {count}, {slots};");
        emit!(w, "mov.u32 {first}, sums;");
        // The launch passes the number of copies minus one. The number of copies is a power of two,
        // so `last` is also a mask.
        emit!(w, "add.u32 {copies}, {last}, 1;");
        emit!(w, "and.b32 {copy}, {thread}, {last};");
        emit!(w, "mul.lo.u32 {copy}, {copy}, {count};");
        emit!(w, "mad.lo.u32 {of_thread}, {copy}, 8, {first};");
        OwnTotals { first, of_thread, count, copies }
    }
}

/// Divides the `count` aggregates that start at `first` among the block's threads. Calls `work`
/// with the address and the index of each aggregate.
fn for_each_own(w: &mut Writer, first: Reg, count: Reg, work: impl Fn(&mut Writer, Reg, Reg)) {
    let index = w.special("tid.x");
    let place = w.reg(Class::Bits32);
    let done = w.reg(Class::Predicate);
    let (again, end) = (w.label(), w.label());
    w.place(again);
    emit!(w, "setp.ge.u32 {done}, {index}, {count};");
    emit!(w, "@{done} bra {end};");
    emit!(w, "mad.lo.u32 {place}, {index}, 8, {first};");
    work(w, place, index);
    emit!(w, "add.u32 {index}, {index}, {BLOCK};");
    emit!(w, "bra {again};");
    w.place(end);
}
