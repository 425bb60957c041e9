//! Writes the PTX of reductions. The operations run in the same order as in the Rust code of
//! `run/reduce.rs`, whatever the addresses are.

use crate::ptx::value::{
    cast, class, combine, identity, load, load_if, load_vector, store, store_if,
};
use crate::ptx::writer::{Class, MAXWELL, Reg, Writer, emit};
use crate::threads::{BLOCK, VECTOR};
use crate::{Kernel, Reduction, Type};

/// Number of vectors of a row, or of elements of a column, that a thread loads at a time.
const UNROLL: usize = 4;

/// A reduction. The values have type `of`, and the total has type `to`.
#[derive(Clone, Copy)]
struct Fold {
    op: Reduction,
    of: Type,
    to: Type,
    total: Reg,
}

impl Fold {
    fn new(w: &mut Writer, op: Reduction, of: Type) -> Fold {
        let to = op.output(of);
        Fold { op, of, to, total: w.reg(class(to)) }
    }

    fn start(&self, w: &mut Writer) {
        let (bits, start) = (self.total.class.suffix(), identity(self.op, self.to));
        emit!(w, "mov.{bits} {}, {start};", self.total);
    }

    fn take(&self, w: &mut Writer, value: Reg) {
        let value = cast(w, self.of, self.to, value);
        combine(w, self.op, self.to, self.total, value);
    }
}

/// Writes a kernel in which several lanes of a block reduce each piece of a row. Each lane adds up
/// its vectors in order. Then the lanes' totals are combined pairwise.
pub(super) fn rows(kernel: &Kernel, op: Reduction, of: Type) -> String {
    let mut w = Writer::default();
    let w = &mut w;
    let fold = Fold::new(w, op, of);
    let [outer, n, chunk, pieces] = [0, 1, 2, 3].map(|index| w.word(index));
    let lanes = w.word32(4);
    let (out, input) = (w.address(5), w.address(6));
    let [thread, block, blocks] = ["tid.x", "ctaid.x", "nctaid.x"].map(|name| w.special(name));
    // `within` is the piece's index in the block, and `lane` is the lane's index in the piece.
    let [each, within, lane] = w.regs(Class::Bits32);
    emit!(w, "div.u32 {within}, {thread}, {lanes};");
    emit!(w, "mul.lo.u32 {lane}, {within}, {lanes};");
    emit!(w, "sub.u32 {lane}, {thread}, {lane};");
    emit!(w, "mov.u32 {each}, {BLOCK};");
    emit!(w, "div.u32 {each}, {each}, {lanes};");
    let [all, base, step, unit, offset] = w.regs(Class::Bits64);
    emit!(w, "mul.lo.u64 {all}, {outer}, {pieces};");
    emit!(w, "mul.wide.u32 {base}, {block}, {each};");
    emit!(w, "mul.wide.u32 {step}, {blocks}, {each};");
    emit!(w, "cvt.u64.u32 {offset}, {within};");
    let [done, active, leads] = w.regs(Class::Predicate);
    let (again, reduced, end) = (w.label(), w.label(), w.label());

    // The loop contains barriers, so all threads of the block must reach it together.
    w.place(again);
    emit!(w, "setp.ge.u64 {done}, {base}, {all};");
    emit!(w, "@{done} bra {end};");
    emit!(w, "add.u64 {unit}, {base}, {offset};");
    emit!(w, "setp.lt.u64 {active}, {unit}, {all};");
    fold.start(w);
    emit!(w, "@!{active} bra {reduced};");
    let (row, piece) = w.divide_unless_one(unit, pieces);
    let (length, from) = piece_of(w, (row, piece), (n, chunk), input, of);
    lane_of_piece(w, fold, (lane, lanes), length, from);
    w.place(reduced);
    by_halves(w, fold, (thread, lane, lanes));
    emit!(w, "setp.eq.and.u32 {leads}, {lane}, 0, {active};");
    let to = w.at(out, unit, fold.to.size());
    store_if(w, fold.to, leads, to, fold.total);
    emit!(w, "add.u64 {base}, {base}, {step};");
    emit!(w, "bra {again};");
    w.place(end);
    w.module(kernel, MAXWELL, Some(BLOCK as usize * 8))
}

/// Writes code that computes the length and the address of one piece of a row of the input. A row
/// of `n` elements is divided into pieces of `chunk` elements, and the last piece may be shorter.
fn piece_of(
    w: &mut Writer,
    (row, piece): (Reg, Reg),
    (n, chunk): (Reg, Reg),
    input: Reg,
    of: Type,
) -> (Reg, Reg) {
    let [first, left, place] = w.regs(Class::Bits64);
    let length = w.reg(Class::Bits32);
    emit!(w, "mul.lo.u64 {first}, {piece}, {chunk};");
    emit!(w, "sub.u64 {left}, {n}, {first};");
    emit!(w, "min.u64 {left}, {left}, {chunk};");
    emit!(w, "cvt.u32.u64 {length}, {left};");
    emit!(w, "mad.lo.s64 {place}, {row}, {n}, {first};");
    (length, w.at(input, place, of.size()))
}

/// Writes code with which one lane of a piece reduces every `lanes`-th vector.
fn lane_of_piece(w: &mut Writer, fold: Fold, (lane, lanes): (Reg, Reg), length: Reg, from: Reg) {
    let (of, each) = (fold.of, VECTOR / fold.of.size());
    let [at, step, far, last] = w.regs(Class::Bits32);
    let low = w.reg(Class::Bits64);
    let [unaligned, done] = w.regs(Class::Predicate);
    let (many, one, singly, end) = (w.label(), w.label(), w.label(), w.label());
    emit!(w, "mul.lo.u32 {at}, {lane}, {each};");
    emit!(w, "mul.lo.u32 {step}, {lanes}, {each};");
    emit!(w, "mul.lo.u32 {far}, {step}, {};", UNROLL - 1);
    emit!(w, "add.u32 {far}, {far}, {each};");
    emit!(w, "and.b64 {low}, {from}, {};", VECTOR - 1);
    emit!(w, "setp.ne.u64 {unaligned}, {low}, 0;");
    emit!(w, "@{unaligned} bra {singly};");

    w.place(many);
    emit!(w, "add.u32 {last}, {at}, {far};");
    emit!(w, "setp.gt.u32 {done}, {last}, {length};");
    emit!(w, "@{done} bra {one};");
    let mut vectors = Vec::new();
    for _ in 0..UNROLL {
        let address = w.at(from, at, of.size());
        vectors.push(load_vector(w, of, address, 0, each));
        emit!(w, "add.u32 {at}, {at}, {step};");
    }
    vectors.into_iter().flatten().for_each(|value| fold.take(w, value));
    emit!(w, "bra {many};");

    w.place(one);
    emit!(w, "add.u32 {last}, {at}, {each};");
    emit!(w, "setp.gt.u32 {done}, {last}, {length};");
    emit!(w, "@{done} bra {singly};");
    let address = w.at(from, at, of.size());
    let vector = load_vector(w, of, address, 0, each);
    vector.into_iter().for_each(|value| fold.take(w, value));
    emit!(w, "add.u32 {at}, {at}, {step};");
    emit!(w, "bra {one};");

    // Loads single elements if no whole vector is left, or if the piece is not aligned.
    w.place(singly);
    emit!(w, "setp.ge.u32 {done}, {at}, {length};");
    emit!(w, "@{done} bra {end};");
    let address = w.at(from, at, of.size());
    let nothing = identity(fold.op, of);
    let values: Vec<Reg> = (0..each)
        .map(|i| {
            let (index, exists) = (w.reg(Class::Bits32), w.reg(Class::Predicate));
            emit!(w, "add.u32 {index}, {at}, {i};");
            emit!(w, "setp.lt.u32 {exists}, {index}, {length};");
            load_if(w, of, exists, (address, i * of.size()), &nothing)
        })
        .collect();
    values.into_iter().for_each(|value| fold.take(w, value));
    emit!(w, "add.u32 {at}, {at}, {step};");
    emit!(w, "bra {singly};");
    w.place(end);
}

/// Combines the totals of all lanes pairwise, into the total of the first lane.
fn by_halves(w: &mut Writer, fold: Fold, (thread, lane, lanes): (Reg, Reg, Reg)) {
    let (total, bits) = (fold.total, fold.total.class.suffix());
    let [own, far, half] = w.regs(Class::Bits32);
    let other = w.reg(total.class);
    let [done, idle] = w.regs(Class::Predicate);
    let (again, met, end) = (w.label(), w.label(), w.label());
    emit!(w, "mov.u32 {own}, sums;");
    emit!(w, "mad.lo.u32 {own}, {thread}, 8, {own};");
    emit!(w, "st.shared.{bits} [{own}], {total};");
    emit!(w, "bar.sync 0;");
    emit!(w, "shr.u32 {half}, {lanes}, 1;");
    w.place(again);
    emit!(w, "setp.eq.u32 {done}, {half}, 0;");
    emit!(w, "@{done} bra {end};");
    emit!(w, "setp.ge.u32 {idle}, {lane}, {half};");
    emit!(w, "@{idle} bra {met};");
    emit!(w, "mad.lo.u32 {far}, {half}, 8, {own};");
    emit!(w, "ld.shared.{bits} {other}, [{far}];");
    combine(w, fold.op, fold.to, total, other);
    emit!(w, "st.shared.{bits} [{own}], {total};");
    w.place(met);
    emit!(w, "bar.sync 0;");
    emit!(w, "shr.u32 {half}, {half}, 1;");
    emit!(w, "bra {again};");
    w.place(end);
}

/// Writes a kernel in which one thread reduces each piece of a column, in order.
pub(super) fn columns(kernel: &Kernel, op: Reduction, of: Type) -> String {
    let mut w = Writer::default();
    let w = &mut w;
    let fold = Fold::new(w, op, of);
    let [outer, n, chunk, pieces, inner] = [0, 1, 2, 3, 4].map(|index| w.word(index));
    let (out, input) = (w.address(5), w.address(6));
    let (index, threads) = w.thread_of_all();
    let [all, first, left, place, step, unrolled] = w.regs(Class::Bits64);
    let done = w.reg(Class::Predicate);
    let (again, many, one, stored, end) = (w.label(), w.label(), w.label(), w.label(), w.label());
    emit!(w, "mul.lo.u64 {all}, {outer}, {pieces};");
    emit!(w, "mul.lo.u64 {all}, {all}, {inner};");
    emit!(w, "mul.lo.u64 {step}, {inner}, {};", of.size());
    emit!(w, "mul.lo.u64 {unrolled}, {step}, {UNROLL};");

    w.place(again);
    emit!(w, "setp.ge.u64 {done}, {index}, {all};");
    emit!(w, "@{done} bra {end};");
    let (group, column) = w.divide_unless_one(index, inner);
    let (plane, piece) = w.divide_unless_one(group, pieces);
    emit!(w, "mul.lo.u64 {first}, {piece}, {chunk};");
    emit!(w, "sub.u64 {left}, {n}, {first};");
    emit!(w, "min.u64 {left}, {left}, {chunk};");
    emit!(w, "mad.lo.s64 {place}, {plane}, {n}, {first};");
    emit!(w, "mad.lo.s64 {place}, {place}, {inner}, {column};");
    let from = w.at(input, place, of.size());
    fold.start(w);

    w.place(many);
    emit!(w, "setp.lt.u64 {done}, {left}, {UNROLL};");
    emit!(w, "@{done} bra {one};");
    let mut address = from;
    let mut values = Vec::new();
    for _ in 0..UNROLL {
        values.push(load(w, of, address));
        let next = w.reg(Class::Bits64);
        emit!(w, "add.u64 {next}, {address}, {step};");
        address = next;
    }
    values.into_iter().for_each(|value| fold.take(w, value));
    emit!(w, "add.u64 {from}, {from}, {unrolled};");
    emit!(w, "sub.u64 {left}, {left}, {UNROLL};");
    emit!(w, "bra {many};");

    w.place(one);
    emit!(w, "setp.eq.u64 {done}, {left}, 0;");
    emit!(w, "@{done} bra {stored};");
    let value = load(w, of, from);
    fold.take(w, value);
    emit!(w, "add.u64 {from}, {from}, {step};");
    emit!(w, "sub.u64 {left}, {left}, 1;");
    emit!(w, "bra {one};");

    w.place(stored);
    let to = w.at(out, index, fold.to.size());
    store(w, fold.to, to, fold.total);
    emit!(w, "add.u64 {index}, {index}, {threads};");
    emit!(w, "bra {again};");
    w.place(end);
    w.module(kernel, MAXWELL, None)
}
