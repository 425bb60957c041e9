//! Launches every kernel of gpuheap through the driver. On equal bytes, a kernel must give the same
//! result as its Rust version, and change no other bytes. On a GPU, this compares the PTX with the
//! Rust code.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::ptr::null_mut;

use gpuheap_driver::*;
use gpuheap_kernels::{
    Arithmetic, ByKey, Comparison, Fold, Kernel, Launch, Memory, Operand, Reduction, Type, Unary,
    arithmetic, cast, comparison, copy, group, partials, reduce, take, unary,
};

use crate::support::*;

/// Device memory that all cases share, in bytes.
const ARENA: usize = 4 << 20;

#[test]
fn kernels_match_rust_results() {
    on_every_driver_once(|gpu| {
        let bench = Bench::new(gpu);
        for (family, cases) in FAMILIES {
            cases(&bench);
            bench.unload();
            assert!(!bench.seen.borrow().is_empty(), "{family} launched nothing");
        }
        let missed: Vec<String> = Kernel::all()
            .into_iter()
            .map(|kernel| kernel.name())
            .filter(|name| !bench.seen.borrow().contains(name))
            .collect();
        assert!(missed.is_empty(), "never launched: {missed:?}");
        gpu.free(bench.arena);
    });
}

/// Cases of one family of kernels.
type Cases = fn(&Bench<'_, '_>);

const FAMILIES: &[(&str, Cases)] = &[
    ("flat arithmetic and comparisons", flat),
    ("one operand", one_operand),
    ("strided arithmetic and comparisons", strided),
    ("casts", casts),
    ("copies", copies),
    ("reductions", reductions),
    ("aggregates by key", groups),
    ("rows by index", takes),
];

/// A driver with loaded kernels and memory.
struct Bench<'g, 'd> {
    gpu: &'g Gpu<'d>,
    arena: CUdeviceptr,
    loaded: RefCell<HashMap<Kernel, (CUmodule, CUfunction)>>,
    /// Names of the kernels that were launched.
    seen: RefCell<BTreeSet<String>>,
}

impl<'g, 'd> Bench<'g, 'd> {
    fn new(gpu: &'g Gpu<'d>) -> Bench<'g, 'd> {
        Bench {
            gpu,
            arena: gpu.allocate(ARENA),
            loaded: RefCell::default(),
            seen: RefCell::default(),
        }
    }

    fn function(&self, kernel: Kernel) -> CUfunction {
        let load = || {
            let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
            let (text, name) = (c_text(kernel.ptx()), c_text(kernel.name()));
            let code = code!(self.gpu, cuModuleLoadData(&mut module, text.as_ptr().cast()));
            assert_eq!(code, CUresult::SUCCESS, "loading {}", kernel.name());
            ok!(self.gpu, cuModuleGetFunction(&mut function, module, name.as_ptr()));
            (module, function)
        };
        self.seen.borrow_mut().insert(kernel.name());
        self.loaded.borrow_mut().entry(kernel).or_insert_with(load).1
    }

    fn unload(&self) {
        ok!(self.gpu, cuCtxSynchronize());
        for (_, (module, _)) in self.loaded.borrow_mut().drain() {
            ok!(self.gpu, cuModuleUnload(module));
        }
    }

    fn launch(&self, launch: &Launch) {
        let function = self.function(launch.kernel);
        let code = launch_with(self.gpu, function, launch, CUstream::NULL);
        assert_eq!(code, CUresult::SUCCESS, "{launch:?}");
    }

    /// Uploads the image, launches the kernels, and compares every byte with the Rust result. In
    /// the ranges `floats`, any NaN equals any other NaN.
    fn compare(&self, image: Image, floats: &[(usize, Type, usize)], launches: &[Launch]) {
        self.gpu.upload(self.arena, &image.bytes);
        let mut expected = image;
        for launch in launches {
            self.launch(launch);
            let ran = launch.kernel.run(launch.words.as_slice(), &mut expected);
            assert_eq!(ran, Ok(()), "{launch:?} leaves its memory");
        }
        let mut found = self.gpu.download(self.arena, expected.bytes.len());
        for &(at, of, count) in floats {
            same_nans(&mut found[at..][..count * of.size()], of);
            same_nans(&mut expected.bytes[at..][..count * of.size()], of);
        }
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected.bytes[at]) {
            let near = at & !7..(at & !7) + 8;
            panic!(
                "byte {at:#x} of {:#x}: {:x?} on {}, {:x?} in Rust, by {launches:#?}",
                found.len(),
                &found[near.clone()],
                self.gpu.name,
                &expected.bytes[near],
            );
        }
    }
}

/// Launches on a stream and returns the code.
fn launch_with(gpu: &Gpu<'_>, function: CUfunction, launch: &Launch, stream: CUstream) -> CUresult {
    let words = launch.words;
    let mut parameters = [words.as_slice().as_ptr().cast_mut().cast()];
    let parameters = parameters.as_mut_ptr();
    let (grid, block) = (launch.grid, launch.block);
    code!(gpu, cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, parameters, null_mut()))
}

fn c_text(text: String) -> CString {
    CString::new(text).unwrap()
}

/// Content for the start of the bench's device memory. The content is uploaded, and the Rust
/// versions of the kernels change a copy of it.
#[derive(Clone)]
struct Image {
    base: u64,
    bytes: Vec<u8>,
}

impl Image {
    fn new(bench: &Bench<'_, '_>) -> Image {
        Image { base: bench.arena, bytes: Vec::new() }
    }

    /// Appends `data` at an offset of `off` bytes from a multiple of 64, with other bytes around
    /// it. Returns the offset in the image.
    fn put(&mut self, off: usize, data: &[u8]) -> usize {
        let place = self.bytes.len().next_multiple_of(64) + 64 + off;
        self.bytes.resize(place, 0xa5);
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len() + 64, 0x5a);
        assert!(self.bytes.len() <= ARENA);
        place
    }

    fn address(&self, place: usize) -> u64 {
        self.base + place as u64
    }

    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, String> {
        let start = address.checked_sub(self.base).map(|start| start as usize);
        let range = start.map(|start| start..start + bytes);
        range.filter(|range| range.end <= self.bytes.len()).ok_or(format!("{address:#x}"))
    }
}

impl Memory for Image {
    type Error = String;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(&self.bytes[self.range(address, into.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), String> {
        let range = self.range(address, from.len())?;
        self.bytes[range].copy_from_slice(from);
        Ok(())
    }
}

/// Replaces each NaN by the same NaN.
fn same_nans(bytes: &mut [u8], of: Type) {
    for element in bytes.chunks_exact_mut(of.size()) {
        if of == Type::F32 && f32::from_le_bytes((&*element).try_into().unwrap()).is_nan() {
            element.copy_from_slice(&f32::NAN.to_le_bytes());
        }
        if of == Type::F64 && f64::from_le_bytes((&*element).try_into().unwrap()).is_nan() {
            element.copy_from_slice(&f64::NAN.to_le_bytes());
        }
    }
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns the bits of boundary values, at which mistakes are likely.
fn edges(of: Type) -> Vec<u64> {
    if !of.is_float() {
        let top = 1_u64 << (8 * of.size() - 1);
        let edges =
            [0, 1, 2, 3, 5, 7, 10, 100, top - 1, top, top + 1, top / 2, u64::MAX, u64::MAX - 1];
        let mask = u64::MAX >> (64 - 8 * of.size());
        return match of {
            Type::Bool => vec![0, 1, 1, 0, 1],
            _ => edges.iter().map(|edge| edge & mask).collect(),
        };
    }
    let mut values =
        vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 0.1, 10.0, 1e10, f64::INFINITY, f64::NAN];
    // These values are the limits of the integer types, and the values next to the limits.
    for bits in [7, 8, 15, 16, 24, 31, 32, 53, 63, 64] {
        let limit = 2.0_f64.powi(bits);
        values.extend([limit - 1.0, limit - 0.5, limit, limit + 0.5, limit + 1.0]);
    }
    values.extend(values.clone().iter().map(|value| -value));
    if of == Type::F32 {
        let mut bits: Vec<u32> = values.iter().map(|value| (*value as f32).to_bits()).collect();
        let all = [
            f32::MAX,
            f32::MIN_POSITIVE,
            f32::from_bits(1),
            f32::from_bits(0x7f_ffff),
            f32::EPSILON,
        ];
        bits.extend(all.iter().flat_map(|value| [value.to_bits(), (-value).to_bits()]));
        return bits.into_iter().map(u64::from).collect();
    }
    let small = f32::MIN_POSITIVE;
    let all = [
        f64::MAX,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        f64::EPSILON,
        f64::from(f32::MAX),
        f64::from(f32::MAX) * (1.0 + 1e-9),
        f64::from(small) / 3.0,
        f64::from(small) * 1.000_000_1,
        1e300,
    ];
    values.extend(all.iter().flat_map(|value| [*value, -value]));
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns boundary values and random bits, alternating.
fn wild(of: Type, count: usize, random: &mut Random) -> Vec<u8> {
    let edges = edges(of);
    let mut bytes = Vec::new();
    for i in 0..count {
        let bits = match (of, i % 3) {
            (Type::Bool, _) => random.next() & 1,
            (_, 0) => random.next(),
            _ => edges[random.next() as usize % edges.len()],
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..of.size()]);
    }
    bytes
}

/// Returns finite values whose sum depends on the order of addition.
fn finite(of: Type, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let (mantissa, exponent) = (random.next() as i32, random.next() % 40);
        let value = f64::from(mantissa) * 2.0_f64.powi(exponent as i32 - 40);
        match of {
            Type::F32 => bytes.extend_from_slice(&(value as f32).to_le_bytes()),
            Type::F64 => bytes.extend_from_slice(&value.to_le_bytes()),
            Type::Bool => bytes.push(u8::from(exponent < 30)),
            of => bytes.extend_from_slice(&random.next().to_le_bytes()[..of.size()]),
        }
    }
    bytes
}

/// Returns two arrays, for the left and the right operands: first all pairs of boundary values,
/// then pairs of random bits.
fn pairs(of: Type, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let edges = edges(of);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut push = |a: u64, b: u64| {
        left.extend_from_slice(&a.to_le_bytes()[..of.size()]);
        right.extend_from_slice(&b.to_le_bytes()[..of.size()]);
    };
    for &a in &edges {
        edges.iter().for_each(|&b| push(a, b));
    }
    for _ in 0..2000 {
        match of {
            Type::Bool => push(random.next() & 1, random.next() & 1),
            _ => push(random.next(), random.next()),
        }
    }
    (left, right)
}

/// Returns all operations with two operands, each with every type that supports it.
fn operations() -> Vec<(Does, Type)> {
    let mut all = Vec::new();
    for &of in Type::ALL {
        if of != Type::Bool {
            all.extend(Arithmetic::ALL.iter().map(|&op| (Does::Arithmetic(op), of)));
        }
        all.extend(Comparison::ALL.iter().map(|&op| (Does::Comparison(op), of)));
    }
    all
}

#[derive(Clone, Copy)]
enum Does {
    Arithmetic(Arithmetic),
    Comparison(Comparison),
}

impl Does {
    fn output(self, of: Type) -> Type {
        match self {
            Does::Arithmetic(_) => of,
            Does::Comparison(_) => Type::Bool,
        }
    }

    fn plan(self, of: Type, shape: &[usize], out: u64, sides: [Operand<'_>; 2]) -> Vec<Launch> {
        match self {
            Does::Arithmetic(op) => arithmetic(op, of, shape, out, sides[0], sides[1]),
            Does::Comparison(op) => comparison(op, of, shape, out, sides[0], sides[1]),
        }
    }
}

fn flat(bench: &Bench<'_, '_>) {
    let mut random = Random(1);
    for (does, of) in operations() {
        let (left, right) = pairs(of, &mut random);
        let out_of = does.output(of);
        let all = left.len() / of.size();
        // Each case has the three arrays' offsets from a multiple of 64 bytes, in elements, and the
        // number of elements in an array.
        let cases = [
            ([0, 0, 0], all),
            ([0, 0, 0], all - 1),
            ([1, 0, 0], all),
            ([0, 1, 0], all),
            ([0, 0, 3], all),
            ([1, 1, 1], 1),
            ([0, 0, 0], 1),
            ([0, 0, 0], 7),
            ([0, 0, 0], 16),
            ([0, 0, 0], 17),
            ([4, 4, 4], 33),
        ];
        for (off, count) in cases {
            let (image, [out, a, b]) = operands(bench, of, out_of, off, (&left, &right), count);
            let [left, right] = [a, b].map(|place| dense(image.address(place)));
            let launches = does.plan(of, &[count], image.address(out), [left, right]);
            bench.compare(image, &[(out, out_of, count)], &launches);
        }
        // If the types allow, the operation also runs in place.
        if out_of == of {
            let mut image = Image::new(bench);
            let [a, b] = [image.put(0, &left), image.put(0, &right)];
            let (x, y) = (image.address(a), image.address(b));
            let launches = does.plan(of, &[all], x, [dense(x), dense(y)]);
            bench.compare(image, &[(a, of, all)], &launches);
        }
        let some = 101;
        for scalar in edges(of) {
            for (off, sides) in [(0, [true, false]), (1, [false, true])] {
                let off = [0, off, 0];
                let (image, [out, a, _]) = operands(bench, of, out_of, off, (&left, &right), some);
                let array = dense(image.address(a));
                let sides = sides.map(|is| if is { Operand::Scalar(scalar) } else { array });
                let launches = does.plan(of, &[some], image.address(out), sides);
                bench.compare(image, &[(out, out_of, some)], &launches);
            }
        }
        let (image, [out, ..]) = operands(bench, of, out_of, [0; 3], (&left, &right), some);
        let scalars = [Operand::Scalar(edges(of)[3]), Operand::Scalar(edges(of)[2])];
        let launches = does.plan(of, &[some], image.address(out), scalars);
        bench.compare(image, &[(out, out_of, some)], &launches);
        bench.unload();
    }
}

/// Returns an image of device memory: an output and two inputs, each offset by some elements.
fn operands(
    bench: &Bench<'_, '_>,
    of: Type,
    out_of: Type,
    off: [usize; 3],
    (left, right): (&[u8], &[u8]),
    count: usize,
) -> (Image, [usize; 3]) {
    let mut image = Image::new(bench);
    let bytes = count * of.size();
    let out = image.put(off[0] * out_of.size(), &vec![0xee; count * out_of.size()]);
    let left = image.put(off[1] * of.size(), &left[left.len() - bytes..]);
    let right = image.put(off[2] * of.size(), &right[right.len() - bytes..]);
    (image, [out, left, right])
}

fn dense<'a>(address: u64) -> Operand<'a> {
    Operand::Array { address, strides: &[1] }
}

fn one_operand(bench: &Bench<'_, '_>) {
    let mut random = Random(2);
    for &of in Type::ALL {
        let values = wild(of, 1001, &mut random);
        for (op, out_of) in [(Unary::Negate, of), (Unary::Not, Type::Bool)] {
            if (op, of) == (Unary::Negate, Type::Bool) {
                continue;
            }
            let mut image = Image::new(bench);
            let out = image.put(0, &vec![0xee; 1001 * out_of.size()]);
            let input = image.put(0, &values);
            let launches = unary(op, of, 1001, image.address(out), image.address(input));
            bench.compare(image, &[(out, out_of, 1001)], &launches);
        }
    }
}

fn strided(bench: &Bench<'_, '_>) {
    let mut random = Random(3);
    let ten = [2, 3, 2, 2, 2, 3, 2, 2, 2, 2];
    // Broadcast axes alternate between the inputs, so that no two axes can be joined.
    let odd = [2304, 0, 384, 0, 96, 0, 16, 0, 4, 0];
    let even = [0, 768, 0, 192, 0, 32, 0, 8, 0, 2];
    type Case<'a> = (&'a [usize], &'a [isize], &'a [isize]);
    let cases: &[Case<'_>] = &[
        (&[5, 7], &[7, 1], &[0, 1]),
        (&[5, 7], &[1, 0], &[0, 1]),
        (&[5, 7], &[0, 0], &[7, 1]),
        (&[40, 50], &[1, 40], &[50, 1]),
        (&[3, 1, 5, 4], &[20, 20, 4, 1], &[4, 0, 0, 1]),
        (&[3, 4, 5, 6], &[120, 0, 6, 0], &[0, 30, 0, 1]),
        (&[2000], &[-1], &[1]),
        (&[9, 9], &[-9, -1], &[9, -1]),
        (&ten, &odd, &even),
        // In this case, the kernel can load the innermost axis in whole vectors.
        (&[9, 64], &[64, 1], &[0, 1]),
        (&[9, 64], &[1, 0], &[64, 1]),
        (&[9, 32], &[64, 1], &[1, 0]),
        (&[5, 3, 48], &[0, 48, 1], &[-48, 0, 1]),
    ];
    for (does, of) in operations() {
        let out_of = does.output(of);
        for (index, &(shape, left, right)) in cases.iter().enumerate() {
            let count: usize = shape.iter().product();
            let sources: &[[bool; 2]] = match index {
                2 | 6 | 7 | 11 | 12 => &[[true, true], [true, false], [false, true]],
                _ => &[[true, true]],
            };
            for are_arrays in sources {
                let mut image = Image::new(bench);
                let off = if index < 9 { index % 2 } else { 0 };
                let out = image.put(off * out_of.size(), &vec![0xee; count * out_of.size()]);
                let mut sides = [Operand::Scalar(edges(of)[4]); 2];
                for i in 0..2 {
                    let strides = [left, right][i];
                    let (before, after) = reach(shape, strides);
                    let values = wild(of, before + after + 1, &mut random);
                    let off = usize::from(index < 9);
                    let place = image.put(off * of.size(), &values) + before * of.size();
                    if are_arrays[i] {
                        sides[i] = Operand::Array { address: image.address(place), strides };
                    }
                }
                let launches = does.plan(of, shape, image.address(out), sides);
                bench.compare(image, &[(out, out_of, count)], &launches);
            }
        }
        bench.unload();
    }
}

/// Returns the number of elements that a strided array reaches before and after its first element.
fn reach(shape: &[usize], strides: &[isize]) -> (usize, usize) {
    let mut reach = (0, 0);
    for (&length, &stride) in shape.iter().zip(strides) {
        let far = (length - 1) * stride.unsigned_abs();
        if stride < 0 { reach.0 += far } else { reach.1 += far }
    }
    reach
}

fn casts(bench: &Bench<'_, '_>) {
    let mut random = Random(4);
    for &from in Type::ALL {
        for &to in Type::ALL {
            let mut values = Vec::new();
            for edge in edges(from) {
                values.extend_from_slice(&edge.to_le_bytes()[..from.size()]);
            }
            values.extend(wild(from, 1000, &mut random));
            let all = values.len() / from.size();
            for (off, count) in
                [([0, 0], all), ([1, 0], all), ([0, 1], all), ([0, 0], 3), ([0, 0], 16)]
            {
                let mut image = Image::new(bench);
                let out = image.put(off[0] * to.size(), &vec![0xee; count * to.size()]);
                let input = image.put(off[1] * from.size(), &values[..count * from.size()]);
                let launches = cast(from, to, count, image.address(out), image.address(input));
                bench.compare(image, &[(out, to, count)], &launches);
            }
        }
        bench.unload();
    }
}

fn copies(bench: &Bench<'_, '_>) {
    let mut random = Random(5);
    let ten = [2; 10];
    let apart: Vec<isize> = (0..10).map(|axis| 3 << (9 - axis)).collect();
    let backwards: Vec<isize> = (0..10).map(|axis| -(2 << axis)).collect();
    type Case<'a> = (&'a [usize], &'a [isize], &'a [isize]);
    let cases: &[Case<'_>] = &[
        (&[1], &[1], &[1]),
        (&[1000], &[1], &[1]),
        (&[1000], &[2], &[1]),
        (&[1000], &[1], &[3]),
        (&[1000], &[1], &[-1]),
        (&[1000], &[-2], &[1]),
        (&[1000], &[1], &[0]),
        (&[30, 40], &[40, 1], &[1, 30]),
        (&[30, 40], &[1, 30], &[40, 1]),
        (&[30, 40], &[48, 1], &[64, 1]),
        (&[5, 6, 7], &[42, 7, 1], &[1, 5, -30]),
        (&[5, 6, 7], &[42, 7, 1], &[0, 7, 1]),
        (&ten, &apart, &backwards),
    ];
    for unit in [1, 2, 4, 8, 16] {
        for &(shape, to, from) in cases {
            for off in [[0, 0], [1, 0], [0, 1]] {
                let mut image = Image::new(bench);
                let mut addresses = [0; 2];
                for (i, strides) in [to, from].into_iter().enumerate() {
                    let (before, after) = reach(shape, strides);
                    let bytes = (before + after + 1) * unit;
                    let data: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
                    let place = image.put(off[i] * unit, &data) + before * unit;
                    addresses[i] = image.address(place);
                }
                let launches = copy(unit, shape, addresses[0], to, addresses[1], from);
                bench.compare(image, &[], &launches);
            }
        }
    }
}

fn reductions(bench: &Bench<'_, '_>) {
    let mut random = Random(6);
    let shapes = [
        (1, 1, 1),
        (3, 0, 2),
        (2, 5, 1),
        (300, 32, 1),
        (1, 33, 1),
        (7, 33, 1),
        (9, 100, 1),
        (3, 1024, 1),
        (3, 1025, 1),
        (2, 8191, 1),
        (2, 8192, 1),
        (2, 8193, 1),
        (1, 100_003, 1),
        (2, 3, 4),
        (1, 256, 3),
        (2, 257, 5),
        (1, 1000, 70),
        (2, 1, 300),
    ];
    for &of in Type::ALL {
        for &op in Reduction::ALL {
            for (outer, n, inner) in shapes {
                for off in [0, 1] {
                    let count = outer * n * inner;
                    for is_wild in [false, true] {
                        let make = if is_wild { wild } else { finite };
                        // If `is_wild` is false, the values contain no NaN, because a NaN hides the
                        // smallest and the largest value.
                        let mut values = make(of, count, &mut random);
                        if matches!(op, Reduction::Any | Reduction::All) && count % 2 == 0 {
                            values.fill(u8::from(op == Reduction::All));
                        }
                        reduce_to_the_end(bench, (op, of), (outer, n, inner), off, &values);
                    }
                }
            }
            // This case contains zeros of both signs and no other values.
            if of.is_float() {
                let zeros: Vec<u8> = (0..100_u64)
                    .flat_map(|i| {
                        ((i % 3 / 2) << (8 * of.size() - 1)).to_le_bytes()[..of.size()].to_vec()
                    })
                    .collect();
                for shape in [(1, 100, 1), (10, 10, 1), (1, 10, 10)] {
                    reduce_to_the_end(bench, (op, of), shape, 0, &zeros);
                }
            }
        }
        bench.unload();
    }
}

fn reduce_to_the_end(
    bench: &Bench<'_, '_>,
    (op, of): (Reduction, Type),
    (outer, n, inner): (usize, usize, usize),
    off: usize,
    values: &[u8],
) {
    let mut image = Image::new(bench);
    let mut input = image.put(off * of.size(), values);
    let (mut of, mut n) = (of, n);
    let (mut launches, mut floats) = (Vec::new(), Vec::new());
    loop {
        let (to, left) = (op.output(of), partials(n, inner));
        let count = outer * left * inner;
        let out = image.put(off * to.size(), &vec![0xee; count * to.size()]);
        let (target, source) = (image.address(out), image.address(input));
        launches.extend(reduce(op, of, outer, n, inner, target, source));
        floats.push((out, to, count));
        if left == 1 {
            return bench.compare(image, &floats, &launches);
        }
        (of, n, input) = (to, left, out);
    }
}

fn groups(bench: &Bench<'_, '_>) {
    let mut random = Random(7);
    let types = Type::ALL.iter().copied();
    // The last case of each type has more aggregates than fit into a block's shared memory.
    let of_sums: &[_] = &[(1, 1, 1), (5000, 1, 7), (999, 3, 100), (3000, 50, 120)];
    for of in types.map(Some).chain([None]) {
        let folds = if of.is_some() { Fold::ALL } else { &[Fold::Count] };
        for (&fold, &key) in folds.iter().flat_map(|fold| {
            Type::ALL.iter().filter(|key| key.is_integer()).map(move |key| (fold, key))
        }) {
            let is_plain = of.is_none() || fold == Fold::Sum;
            let cases = if is_plain { of_sums } else { &[(600, 1, 7), (200, 50, 120)] };
            for &(rows, inner, groups) in cases {
                for is_bad in [false, true] {
                    let inner = if of.is_some() { inner } else { 1 };
                    // The case of 120 groups must exceed a block's shared memory. A count keeps
                    // only one value for each group, so it needs more groups for that.
                    let groups = if of.is_none() && groups == 120 { 5000 } else { groups };
                    let bits = random.next();
                    let mut key_of = |row: usize| match (is_bad, row % 10) {
                        (true, 3) => u64::MAX,
                        (true, 5) => groups as u64,
                        (true, 7) => random.next() ^ bits,
                        // A narrow key type can represent only the first groups: uses only those.
                        _ => random.next() % (groups as u64).min(1 << (8 * key.size() - 1)),
                    };
                    let keys: Vec<u8> = (0..rows)
                        .flat_map(|row| key_of(row).to_le_bytes()[..key.size()].to_vec())
                        .collect();
                    let case = (rows, inner, groups);
                    fold_groups(bench, fold, (of, key), case, &keys, &mut random);
                }
            }
        }
        bench.unload();
    }
}

fn fold_groups(
    bench: &Bench<'_, '_>,
    fold: Fold,
    (of, key): (Option<Type>, Type),
    (rows, inner, groups): (usize, usize, usize),
    keys: &[u8],
    random: &mut Random,
) {
    let mut image = Image::new(bench);
    let skips_nan = fold != Fold::Sum;
    // Sums of small whole numbers are exact in any order.
    let mut small = |count: usize| -> Vec<f64> {
        (0..count).map(|_| (random.next() % 64) as f64 - 20.0).collect()
    };
    let (means, mut numbers) = (small(groups * inner), small(rows * inner));
    numbers.iter_mut().step_by(11).filter(|_| skips_nan).for_each(|number| *number = f64::NAN);
    let floats = |bytes: fn(f64) -> Vec<u8>| -> Vec<u8> {
        numbers.iter().copied().flat_map(bytes).collect()
    };
    let values = of.map(|of| {
        let values: Vec<u8> = match of {
            Type::F32 => floats(|number| (number as f32).to_le_bytes().to_vec()),
            Type::F64 => floats(|number| number.to_le_bytes().to_vec()),
            // Small integers: sums of the squares of arbitrary integers are not exact.
            of if fold == Fold::Squares && of.size() > 1 => {
                floats(|number| (number.abs() as u64).to_le_bytes().to_vec())
                    .chunks_exact(8)
                    .flat_map(|number| number[..of.size()].to_vec())
                    .collect()
            }
            of => wild(of, rows * inner, random),
        };
        image.put(0, &values)
    });
    let bits = wild(Type::U8, (rows * inner).div_ceil(8), random);
    let identity = fold.identity(of.unwrap_or(Type::U64)).to_le_bytes();
    let means: Vec<u8> = means.iter().flat_map(|mean| mean.to_le_bytes()).collect();
    let places = [
        image.put(0, keys),
        image.put(0, &identity.repeat(groups * inner)),
        image.put(0, &[[0; 8], [0xff; 8]].concat()),
        image.put(0, &bits),
        image.put(0, &means),
    ];
    let [keys, out, bad, valid, means] = places.map(|place| image.address(place));
    let launches = group(&ByKey {
        fold,
        values: of.zip(values.map(|place| image.address(place))),
        keys: (key, keys),
        rows,
        inner,
        groups,
        out,
        bad: (fold == Fold::Sum || rows == 600).then_some(bad),
        valid: skips_nan.then_some(valid),
        means,
        skips_nan,
    });
    bench.compare(image, &[], &launches);
}

fn takes(bench: &Bench<'_, '_>) {
    let mut random = Random(8);
    for unit in [1, 2, 4, 8, 16] {
        let (rows, count) = (300_usize, 1000);
        let mut image = Image::new(bench);
        let indices: Vec<u8> = (0..count)
            .flat_map(|_| ((random.next() % (rows as u64 + 3)) as u32).to_le_bytes())
            .collect();
        let places = [
            image.put(0, &wild(Type::U8, rows * unit, &mut random)),
            image.put(0, &indices),
            image.put(0, &vec![1; count * unit]),
        ];
        let [input, indices, out] = places.map(|place| image.address(place));
        bench.compare(image, &[], &take(unit, count, out, input, rows, indices));
    }
}

#[test]
fn kernel_lives_until_module_unload() {
    on_every_driver_unchecked(|gpu| {
        const HANDLE: CUresult = CUresult::ERROR_INVALID_HANDLE;
        let emulated = std::env::var_os("GPUHEAP_TEST_DEVICE").is_none();
        let [launch] = unary(Unary::Negate, Type::I32, 8, 0, 0)[..] else { panic!() };
        let (text, name) = (c_text(launch.kernel.ptx()), c_text(launch.kernel.name()));
        let module = made!(gpu, cuModuleLoadData(text.as_ptr().cast()));
        let function = made!(gpu, cuModuleGetFunction(module, name.as_ptr()));
        let mut again = made!(gpu, cuModuleGetFunction(module, name.as_ptr()));
        assert_eq!(function, again);
        let code = code!(gpu, cuModuleGetFunction(&mut again, module, c"other".as_ptr()));
        assert_eq!(code, CUresult::ERROR_NOT_FOUND);
        let (mut pointer, mut bytes) = (0, 0);
        let code =
            code!(gpu, cuModuleGetGlobal_v2(&mut pointer, &mut bytes, module, c"other".as_ptr()));
        assert_eq!(code, CUresult::ERROR_NOT_FOUND);

        // This case runs on a stream and uses host memory.
        let stream = gpu.stream();
        let pinned = gpu.pinned(64);
        pinned[..8].copy_from_slice(&[5, 0, 0, 0, 255, 255, 255, 255]);
        let from = pinned.as_ptr().expose_provenance() as u64;
        let [launch] = unary(Unary::Negate, Type::I32, 8, from + 32, from)[..] else { panic!() };
        assert_eq!(launch_with(gpu, function, &launch, stream), CUresult::SUCCESS);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(pinned[32..40], [251, 255, 255, 255, 1, 0, 0, 0]);

        // Launches with an empty grid, or with a block size that the kernel does not allow, are
        // refused.
        for (grid, block) in [(0, 256), (1, 128), (1, 2000)] {
            let wrong = Launch { grid, block, ..launch };
            let code = launch_with(gpu, function, &wrong, stream);
            assert_eq!(code, CUresult::ERROR_INVALID_VALUE, "{grid} x {block} on {}", gpu.name);
        }
        ok!(gpu, cuModuleUnload(module));
        // Only the emulator refuses stale handles. A real driver dereferences them.
        if emulated {
            assert_eq!(launch_with(gpu, function, &launch, stream), HANDLE);
            assert_eq!(code!(gpu, cuModuleUnload(module)), HANDLE);
            assert_eq!(code!(gpu, cuModuleGetFunction(&mut again, module, name.as_ptr())), HANDLE);
            assert_eq!(launch_with(gpu, CUfunction::NULL, &launch, stream), HANDLE);
        }
        gpu.unpin(pinned);
    });
}
