//! Joins axes, splits them, and writes them as arguments of a strided kernel. Each axis has strides
//! in two arrays.

/// Maximum number of axes of a kernel.
pub(crate) const MOST_AXES: usize = 12;
/// Index of the first axis's first word in a strided kernel's arguments.
pub(crate) const FIRST_AXIS: usize = 5;
/// Number of words of an axis. The first word is the axis's length and the shift for dividing by
/// that length. The second word is the factor for the division. The last two words are the strides
/// in bytes.
pub(crate) const AXIS_WORDS: usize = 4;
/// Maximum number of elements of one launch. The kernels divide by multiplying, and the result is
/// exact only below 2^31.
const MOST_ELEMENTS: usize = i32::MAX as usize;

/// One axis of two arrays. It has a number of elements and, for each array, the distance between
/// adjacent elements in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Axis {
    pub(crate) length: usize,
    pub(crate) strides: [i64; 2],
}

/// Part of an operation's elements. `first` is the row-major index of the part's first element, and
/// `offsets` are that element's byte offsets in both arrays. `axes` has the outermost axis first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) first: usize,
    pub(crate) offsets: [i64; 2],
    pub(crate) axes: Vec<Axis>,
}

/// Joins the axes of a shape into as few axes as possible. Returns `None` if the shape has no
/// elements. Strides are in units of `unit` bytes. A missing stride is 0.
pub(crate) fn collapse(shape: &[usize], strides: [&[isize]; 2], unit: usize) -> Option<Vec<Axis>> {
    if shape.contains(&0) {
        return None;
    }
    let mut axes: Vec<Axis> = Vec::new();
    for (index, &length) in shape.iter().enumerate() {
        if length == 1 {
            continue;
        }
        let bytes = |of: &[isize]| {
            let stride = of.get(index).copied().unwrap_or(0);
            (stride as i64).wrapping_mul(unit as i64)
        };
        let strides = strides.map(bytes);
        // Axes join if, in both arrays, a step of the outer axis spans exactly the inner axis.
        let joins = |outer: &Axis| {
            (0..2).all(|of| outer.strides[of] == strides[of].wrapping_mul(length as i64))
        };
        match axes.last_mut() {
            Some(outer) if joins(outer) => {
                *outer = Axis { length: outer.length.saturating_mul(length), strides };
            }
            _ => axes.push(Axis { length, strides }),
        }
    }
    Some(axes)
}

/// Splits axes into pieces in row-major order. One launch handles one piece.
pub(crate) fn split(axes: &[Axis]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    split_into(&mut pieces, Piece { first: 0, offsets: [0; 2], axes: axes.to_vec() });
    pieces
}

fn split_into(pieces: &mut Vec<Piece>, piece: Piece) {
    let count = |axes: &[Axis]| axes.iter().fold(1, |n: usize, axis| n.saturating_mul(axis.length));
    if piece.axes.len() <= MOST_AXES && count(&piece.axes) <= MOST_ELEMENTS {
        return pieces.push(piece);
    }
    let (outer, inner) = (piece.axes[0], &piece.axes[1..]);
    let each = count(inner);
    // A piece takes `most` indices of the outermost axis. If there are too many axes, the piece
    // takes one index, so that the axis is dropped.
    let most = if inner.len() < MOST_AXES { (MOST_ELEMENTS / each).max(1) } else { 1 };
    let mut at = 0;
    while at < outer.length {
        let now = most.min(outer.length - at);
        let moved =
            |of: usize| piece.offsets[of].wrapping_add(outer.strides[of].wrapping_mul(at as i64));
        let mut axes = Vec::with_capacity(piece.axes.len());
        if now > 1 {
            axes.push(Axis { length: now, ..outer });
        }
        axes.extend_from_slice(inner);
        let first = piece.first.wrapping_add(at.wrapping_mul(each));
        split_into(pieces, Piece { first, offsets: [moved(0), moved(1)], axes });
        at += now;
    }
}

impl Axis {
    /// Reads an axis from a kernel's arguments.
    pub(crate) fn from_words(words: &[u64]) -> Axis {
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        Axis {
            length: word(0) as u32 as usize,
            strides: [word(2).cast_signed(), word(3).cast_signed()],
        }
    }
}

impl Piece {
    pub(crate) fn count(&self) -> u64 {
        self.axes.iter().map(|axis| axis.length as u64).product()
    }

    /// Returns the arguments of a strided kernel. `addresses` are the start addresses of the whole
    /// arrays.
    pub(crate) fn words(&self, linear: (u64, usize), addresses: [u64; 2]) -> Vec<u64> {
        let (out, size) = linear;
        let mut words = vec![
            self.count(),
            self.axes.len() as u64,
            out.wrapping_add((self.first as u64).wrapping_mul(size as u64)),
            addresses[0].wrapping_add_signed(self.offsets[0]),
            addresses[1].wrapping_add_signed(self.offsets[1]),
        ];
        // The kernel divides an index by the innermost length first, so that axis comes first.
        for axis in self.axes.iter().rev() {
            let (factor, shift) = divider(axis.length as u32);
            words.extend([
                axis.length as u64 | u64::from(shift) << 32,
                u64::from(factor),
                axis.strides[0].cast_unsigned(),
                axis.strides[1].cast_unsigned(),
            ]);
        }
        words.resize(FIRST_AXIS + AXIS_WORDS * MOST_AXES, 0);
        words
    }
}

/// Returns a factor and a shift with which `n / d = (high(n * factor) + n) >> shift` for all `n`
/// below 2^31. `high` is the upper half of the 64-bit product (Granlund and Montgomery, 1994).
fn divider(d: u32) -> (u32, u32) {
    let shift = (0..32).find(|shift| 1_u64 << shift >= u64::from(d)).unwrap_or(31);
    let d = u64::from(d.max(1));
    let factor = ((1_u64 << 32) * ((1 << shift) - d) / d) + 1;
    (factor as u32, shift)
}

/// All elements along the innermost axis at one position of the outer axes.
pub(crate) struct Row {
    pub(crate) length: usize,
    /// Offsets of the row's first element in both arrays, in bytes.
    pub(crate) offsets: [i64; 2],
    pub(crate) strides: [i64; 2],
}

/// Calls `each` with every row, in row-major order. If there are no axes, there is one row of one
/// element.
pub(crate) fn for_each_row<E>(
    axes: &[Axis],
    mut each: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let one = Axis { length: 1, strides: [0; 2] };
    let (inner, outer) = axes.split_last().unwrap_or((&one, &[]));
    if axes.iter().any(|axis| axis.length == 0) {
        return Ok(());
    }
    let mut at = vec![0; outer.len()];
    let mut offsets = [0_i64; 2];
    loop {
        each(Row { length: inner.length, offsets, strides: inner.strides })?;
        // Moves to the next row: advances the innermost outer axis that is not at its end, and
        // restarts the axes inside it.
        let mut moved = false;
        for (axis, at) in outer.iter().zip(&mut at).rev() {
            *at += 1;
            moved = *at < axis.length;
            let steps = if moved { 1 } else { 1 - axis.length as i64 };
            offsets = [0, 1].map(|i| offsets[i].wrapping_add(axis.strides[i].wrapping_mul(steps)));
            if moved {
                break;
            }
            *at = 0;
        }
        if !moved {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::divider;

    #[test]
    fn division_is_exact_below_31_bits() {
        let largest = i32::MAX as u32;
        let divisors = (1..300).chain((0..31).flat_map(|bit| {
            let power = 1_u32 << bit;
            [power.saturating_sub(1).max(1), power, (power + 1).min(largest)]
        }));
        for d in divisors.chain([largest, largest - 1, 1_000_003, 715_827_883]) {
            let (factor, shift) = divider(d);
            let multiples = (0..50).map(|i| largest / d / 50 * i * d);
            let edges = multiples.flat_map(|n| [n.saturating_sub(1), n, n + 1, n + d / 2]);
            for n in edges.chain([0, 1, d - 1, d, largest - 1, largest]).filter(|n| *n <= largest) {
                let high = ((u64::from(n) * u64::from(factor)) >> 32) as u32;
                assert_eq!((high + n) >> shift, n / d, "{n} / {d}");
            }
        }
    }
}
