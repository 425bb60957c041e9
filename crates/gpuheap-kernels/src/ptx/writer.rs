//! Writes PTX as text. Declares the registers, and adds the frame around a kernel's body.

use std::fmt;
use std::fmt::Write as _;

use crate::Kernel;
use crate::threads::BLOCK;

/// Oldest architecture on which kernels run.
pub(super) const MAXWELL: &str = "sm_50";
/// Oldest architecture that adds doubles in memory.
pub(super) const PASCAL: &str = "sm_60";

/// Writes one or more instructions of a kernel's body.
macro_rules! emit {
    ($w:expr, $($arg:tt)*) => { $w.line(format_args!($($arg)*)) };
}

pub(super) use emit;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Predicate,
    Bits32,
    Bits64,
    Float32,
    Float64,
}

const CLASSES: [Class; 5] =
    [Class::Predicate, Class::Bits32, Class::Bits64, Class::Float32, Class::Float64];

impl Class {
    fn prefix(self) -> &'static str {
        match self {
            Class::Predicate => "%p",
            Class::Bits32 => "%r",
            Class::Bits64 => "%rd",
            Class::Float32 => "%f",
            Class::Float64 => "%fd",
        }
    }

    /// Returns the type with which registers of the class are declared and moved.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Class::Predicate => "pred",
            Class::Bits32 => "b32",
            Class::Bits64 => "b64",
            Class::Float32 => "f32",
            Class::Float64 => "f64",
        }
    }
}

/// A register.
#[derive(Clone, Copy)]
pub(super) struct Reg {
    pub(super) class: Class,
    number: u32,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.class.prefix(), self.number)
    }
}

/// A jump target.
#[derive(Clone, Copy)]
pub(super) struct Label(u32);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// A kernel's body under construction.
#[derive(Default)]
pub(super) struct Writer {
    body: String,
    registers: [u32; CLASSES.len()],
    labels: u32,
}

impl Writer {
    pub(super) fn reg(&mut self, class: Class) -> Reg {
        let count = &mut self.registers[class as usize];
        *count += 1;
        Reg { class, number: *count - 1 }
    }

    pub(super) fn regs<const N: usize>(&mut self, class: Class) -> [Reg; N] {
        std::array::from_fn(|_| self.reg(class))
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    pub(super) fn place(&mut self, label: Label) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "{label}:");
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "    {line}");
    }

    /// Loads an argument of 64 bits.
    pub(super) fn word(&mut self, index: usize) -> Reg {
        let word = self.reg(Class::Bits64);
        emit!(self, "ld.param.b64 {word}, [args+{}];", 8 * index);
        word
    }

    /// Loads the lower half of an argument.
    pub(super) fn word32(&mut self, index: usize) -> Reg {
        let word = self.reg(Class::Bits32);
        emit!(self, "ld.param.b32 {word}, [args+{}];", 8 * index);
        word
    }

    /// Loads an argument that is an address in global memory.
    pub(super) fn address(&mut self, index: usize) -> Reg {
        let (word, address) = (self.word(index), self.reg(Class::Bits64));
        emit!(self, "cvta.to.global.u64 {address}, {word};");
        address
    }

    /// Reads a special register of 32 bits.
    pub(super) fn special(&mut self, name: &str) -> Reg {
        let value = self.reg(Class::Bits32);
        emit!(self, "mov.u32 {value}, %{name};");
        value
    }

    /// Returns this thread's index among all threads of the grid, and the number of threads.
    pub(super) fn thread_of_all(&mut self) -> (Reg, Reg) {
        let [thread, block, blocks] =
            ["tid.x", "ctaid.x", "nctaid.x"].map(|name| self.special(name));
        let [own, first, all] = self.regs(Class::Bits64);
        emit!(self, "cvt.u64.u32 {own}, {thread};");
        emit!(self, "mad.wide.u32 {first}, {block}, {BLOCK}, {own};");
        emit!(self, "mul.wide.u32 {all}, {blocks}, {BLOCK};");
        (first, all)
    }

    /// Writes `dividend / divisor` and the remainder. If both numbers fit into 32 bits, divides in
    /// 32 bits, because that is much faster. Most numbers fit.
    pub(super) fn divide(&mut self, dividend: Reg, divisor: Reg) -> (Reg, Reg) {
        let [quotient, rest, high] = self.regs(Class::Bits64);
        let [a, b, q, r] = self.regs(Class::Bits32);
        let fits = self.reg(Class::Predicate);
        let (narrow, done) = (self.label(), self.label());
        emit!(self, "or.b64 {high}, {dividend}, {divisor};");
        emit!(self, "shr.u64 {high}, {high}, 32;");
        emit!(self, "setp.eq.u64 {fits}, {high}, 0;");
        emit!(self, "@{fits} bra {narrow};");
        emit!(self, "div.u64 {quotient}, {dividend}, {divisor};");
        emit!(self, "mul.lo.u64 {rest}, {quotient}, {divisor};");
        emit!(self, "sub.u64 {rest}, {dividend}, {rest};");
        emit!(self, "bra {done};");
        self.place(narrow);
        emit!(self, "cvt.u32.u64 {a}, {dividend};");
        emit!(self, "cvt.u32.u64 {b}, {divisor};");
        emit!(self, "div.u32 {q}, {a}, {b};");
        emit!(self, "mul.lo.u32 {r}, {q}, {b};");
        emit!(self, "sub.u32 {r}, {a}, {r};");
        emit!(self, "cvt.u64.u32 {quotient}, {q};");
        emit!(self, "cvt.u64.u32 {rest}, {r};");
        self.place(done);
        (quotient, rest)
    }

    /// Writes a division that is skipped if the divisor is 1. Most divisors are 1.
    pub(super) fn divide_unless_one(&mut self, dividend: Reg, divisor: Reg) -> (Reg, Reg) {
        let [quotient, rest] = self.regs(Class::Bits64);
        let one = self.reg(Class::Predicate);
        let done = self.label();
        emit!(self, "mov.u64 {quotient}, {dividend};");
        emit!(self, "mov.u64 {rest}, 0;");
        emit!(self, "setp.eq.u64 {one}, {divisor}, 1;");
        emit!(self, "@{one} bra {done};");
        let (q, r) = self.divide(dividend, divisor);
        emit!(self, "mov.u64 {quotient}, {q};");
        emit!(self, "mov.u64 {rest}, {r};");
        self.place(done);
        (quotient, rest)
    }

    /// Returns `base + index * bytes`.
    pub(super) fn at(&mut self, base: Reg, index: Reg, bytes: usize) -> Reg {
        let address = self.reg(Class::Bits64);
        match index.class {
            Class::Bits32 => emit!(self, "mad.wide.u32 {address}, {index}, {bytes}, {base};"),
            _ => emit!(self, "mad.lo.s64 {address}, {index}, {bytes}, {base};"),
        }
        address
    }

    /// Returns the module's text. A return instruction follows the kernel's body.
    pub(super) fn module(&self, kernel: &Kernel, target: &str, shared: Option<usize>) -> String {
        let mut text = format!(
            ".version 7.0\n.target {target}\n.address_size 64\n\n.visible .entry {}(\n    .param .align 8 .b8 args[{}]\n)\n.reqntid {BLOCK}, 1, 1\n{{\n",
            kernel.name(),
            8 * kernel.words(),
        );
        for class in CLASSES {
            let count = self.registers[class as usize];
            if count != 0 {
                let _ = writeln!(text, "    .reg .{} {}<{count}>;", class.suffix(), class.prefix());
            }
        }
        if let Some(bytes) = shared {
            let _ = writeln!(text, "    .shared .align 8 .b8 sums[{bytes}];");
        }
        text.push('\n');
        text.push_str(&self.body);
        text.push_str("    ret;\n}\n");
        text
    }
}
