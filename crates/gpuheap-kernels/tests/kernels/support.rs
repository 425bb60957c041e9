//! Provides bytes that stand for GPU memory, and the types of elements that tests store in them.

use gpuheap_kernels::{Launch, Memory, Operand};

/// First address of the memory.
const BASE: u64 = 0x7000_0000;

/// Memory that starts at `BASE`. A use of an address outside of it is an error.
#[derive(Default)]
pub(crate) struct Plain(Vec<u8>);

impl Plain {
    /// Appends values and returns their address.
    pub(crate) fn put<T: Native>(&mut self, values: &[T]) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(16) + 16, 0xa5);
        let address = BASE + self.0.len() as u64;
        values.iter().for_each(|value| self.0.extend_from_slice(&value.bytes()));
        address
    }

    /// Appends room for values and returns its address.
    pub(crate) fn room<T: Native>(&mut self, count: usize) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(16) + 16, 0xa5);
        let address = BASE + self.0.len() as u64;
        self.0.resize(self.0.len() + count * T::SIZE, 0xee);
        address
    }

    pub(crate) fn get<T: Native>(&self, address: u64, count: usize) -> Vec<T> {
        let bytes = &self.0[(address - BASE) as usize..][..count * T::SIZE];
        bytes.chunks_exact(T::SIZE).map(T::from_bytes).collect()
    }

    pub(crate) fn run(&mut self, launches: &[Launch]) {
        for launch in launches {
            let ran = launch.kernel.run(launch.words.as_slice(), self);
            assert_eq!(ran, Ok(()), "{launch:?}");
        }
    }

    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, u64> {
        let start = address.checked_sub(BASE).ok_or(address)? as usize;
        Some(start..start + bytes).filter(|range| range.end <= self.0.len()).ok_or(address)
    }
}

impl Memory for Plain {
    type Error = u64;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), u64> {
        into.copy_from_slice(&self.0[self.range(address, into.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), u64> {
        let range = self.range(address, from.len())?;
        self.0[range].copy_from_slice(from);
        Ok(())
    }
}

/// A Rust type of array elements.
pub(crate) trait Native: Copy + PartialEq + std::fmt::Debug {
    const OF: gpuheap_kernels::Type;
    const SIZE: usize = size_of::<Self>();
    fn bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Returns the bits, zero-extended. All NaNs have the same bits.
    fn bits(self) -> u64;
    /// Returns values at the edges of the type's range.
    fn edges() -> Vec<Self>;
}

macro_rules! native {
    ($($T:ident $of:ident [$($edge:expr),*];)*) => {$(
        impl Native for $T {
            const OF: gpuheap_kernels::Type = gpuheap_kernels::Type::$of;
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> $T {
                $T::from_le_bytes(bytes.try_into().unwrap())
            }
            #[allow(clippy::eq_op, reason = "a NaN is not itself")]
            fn bits(self) -> u64 {
                let value = if self != self { <$T>::edges()[0] } else { self };
                let mut bits = [0; 8];
                bits[..Self::SIZE].copy_from_slice(&value.to_le_bytes());
                u64::from_le_bytes(bits)
            }
            fn edges() -> Vec<$T> {
                vec![$($edge),*]
            }
        }
    )*};
}

/// Implements `Native` for number types. Each list has edge cases of a type, such as its maximum.
/// The first of a float type must be a NaN, because `bits` returns its bits for every NaN.
macro_rules! natives {
    (integers $($i:ident $I:ident),*; floats $($f:ident $F:ident),*) => {
        $(native! { $i $I [$i::MAX, $i::MIN, 0, 1, 2, 3, 7, 100, $i::MAX - 1, $i::MIN + 1, $i::MAX / 2, 0_i8.wrapping_sub(1) as $i]; })*
        $(native! { $f $F [
            $f::NAN, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e10, -1e10, 3e38, 127.0, 128.0, -128.0, -129.0, 255.5, 256.0, 32_768.0,
            65_536.0, 2_147_483_648.0, -2_147_483_648.0, -2_147_483_904.0, 4_294_967_296.0, 9.223_372e18, -9.223_372e18, 1.844_674_5e19,
            $f::INFINITY, $f::NEG_INFINITY, $f::MAX, $f::MIN, $f::MIN_POSITIVE, -$f::MIN_POSITIVE, $f::from_bits(1), $f::EPSILON
        ]; })*
    };
}

natives!(integers i8 I8, i16 I16, i32 I32, i64 I64, u8 U8, u16 U16, u32 U32, u64 U64; floats f32 F32, f64 F64);

impl Native for bool {
    const OF: gpuheap_kernels::Type = gpuheap_kernels::Type::Bool;
    fn bytes(self) -> Vec<u8> {
        vec![u8::from(self)]
    }
    fn from_bytes(bytes: &[u8]) -> bool {
        assert!(bytes[0] < 2, "a bool of {}", bytes[0]);
        bytes[0] == 1
    }
    fn bits(self) -> u64 {
        u64::from(self)
    }
    fn edges() -> Vec<bool> {
        vec![false, true]
    }
}

pub(crate) fn bits<T: Native>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.bits()).collect()
}

pub(crate) fn dense<'a>(address: u64) -> Operand<'a> {
    Operand::Array { address, strides: &[1] }
}

/// Random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
