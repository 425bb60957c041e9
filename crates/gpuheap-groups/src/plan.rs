//! Aggregates of columns, and the parts from which they are computed.

use crate::column::{NumberType, push_present};
use crate::error::Error;

/// An aggregate of a column's values. Missing values are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aggregate {
    /// Number of values.
    Count,
    /// Sum; 0 without values. Integers wrap in 64 bits.
    Sum,
    /// Mean; missing without values.
    Mean,
    /// Smallest value; missing without values.
    Min,
    /// Largest value; missing without values.
    Max,
    /// Standard deviation of a sample; missing if there are fewer than two values.
    Std,
}

impl Aggregate {
    /// All aggregates, with pandas' names.
    pub const ALL: [(&str, Aggregate); 6] = [
        ("count", Aggregate::Count),
        ("sum", Aggregate::Sum),
        ("mean", Aggregate::Mean),
        ("min", Aggregate::Min),
        ("max", Aggregate::Max),
        ("std", Aggregate::Std),
    ];
}

/// Partial result of an aggregate: an 8-byte number that each batch contributes for each of its
/// groups. The numbers of all batches are merged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Number of values, as `u64`.
    Count,
    /// Sum of integers, wrapped around at overflow, as `i64` or `u64`.
    Sum,
    /// Sum as `f64`.
    Total,
    /// Sum of the squared distances from the mean, as `f64`.
    Squares,
    /// Smallest value as `i64`, `u64` or `f64`. A group without values has an arbitrary number.
    Min,
    /// Largest value as `i64`, `u64` or `f64`. A group without values has an arbitrary number.
    Max,
}

/// The aggregates of some columns.
#[derive(Clone, Debug)]
pub struct Plan {
    columns: Vec<ColumnPlan>,
}

#[derive(Clone, Debug)]
struct ColumnPlan {
    of: NumberType,
    /// Parts that the column's aggregates need. Sorted, so that [`Part::Count`] has the index 0.
    parts: Vec<Part>,
    /// Index of this column's first part among the parts of all columns.
    first: usize,
}

/// Values of an aggregate, one for each group.
#[derive(Debug)]
pub struct ResultColumn {
    /// Type of the values.
    pub of: NumberType,
    /// Values, little-endian.
    pub values: Vec<u8>,
    /// `true` for each group that has a value; `None` if all groups have a value.
    pub present: Option<Vec<bool>>,
}

impl Plan {
    /// Plans aggregates of columns of numbers. For a column of another type, `of` is `None`, and
    /// only counts are possible.
    ///
    /// # Errors
    ///
    /// An aggregate other than a count is requested of a column that has no numbers.
    pub fn new(columns: &[(Option<NumberType>, Vec<Aggregate>)]) -> Result<Plan, Error> {
        let mut plan = Plan { columns: Vec::new() };
        for (of, aggregates) in columns {
            if of.is_none() && aggregates.iter().any(|one| *one != Aggregate::Count) {
                return Err(Error::Invalid(
                    "a column without numbers has a count alone".to_owned(),
                ));
            }
            let of = of.unwrap_or(NumberType::Bool);
            let mut parts = vec![Part::Count];
            for aggregate in aggregates {
                match aggregate {
                    Aggregate::Count => {}
                    Aggregate::Sum if of.is_float() => parts.push(Part::Total),
                    Aggregate::Sum => parts.push(Part::Sum),
                    Aggregate::Mean => parts.push(Part::Total),
                    Aggregate::Min => parts.push(Part::Min),
                    Aggregate::Max => parts.push(Part::Max),
                    Aggregate::Std => parts.extend([Part::Total, Part::Squares]),
                }
            }
            parts.sort_unstable();
            parts.dedup();
            let first = plan.width();
            plan.columns.push(ColumnPlan { of, parts, first });
        }
        Ok(plan)
    }

    /// Returns the parts that a batch contributes for a column, in the order of `Merger::add`.
    pub fn parts(&self, column: usize) -> &[Part] {
        self.columns.get(column).map_or(&[], |column| &column.parts)
    }

    /// Returns the number of partial results that a group of a batch has, for all columns.
    pub fn width(&self) -> usize {
        self.columns.last().map_or(0, |last| last.first + last.parts.len())
    }

    /// Merges partial results of one group: adds `from`, of later rows, to `into`, of earlier rows.
    pub(crate) fn merge(&self, into: &mut [u64], from: &[u64]) {
        for column in &self.columns {
            let range = column.first..column.first + column.parts.len();
            column.merge(&mut into[range.clone()], &from[range]);
        }
    }

    /// Returns an aggregate of a column for each group. `states` has [`width`](Plan::width) numbers
    /// for each group, as `Groups::next_chunk` returns them. Returns `None` if the plan lacks the
    /// aggregate.
    pub fn result(
        &self,
        column: usize,
        aggregate: Aggregate,
        states: &[u64],
    ) -> Option<ResultColumn> {
        let (width, column) = (self.width(), self.columns.get(column)?);
        let of = match aggregate {
            Aggregate::Count => NumberType::I64,
            Aggregate::Min | Aggregate::Max => column.of,
            _ if column.of == NumberType::F32 => NumberType::F32,
            Aggregate::Mean | Aggregate::Std => NumberType::F64,
            Aggregate::Sum if column.of.is_float() => NumberType::F64,
            Aggregate::Sum if column.of.is_signed() || column.of == NumberType::Bool => {
                NumberType::I64
            }
            Aggregate::Sum => NumberType::U64,
        };
        let mut made = ResultColumn { of, values: Vec::new(), present: None };
        for (row, state) in states.chunks_exact(width).enumerate() {
            let value = column.value(aggregate, &state[column.first..])?;
            push_present(&mut made.present, row, value.is_some());
            let bits = value.unwrap_or(0);
            let bits = match of {
                NumberType::F32 => u64::from((f64::from_bits(bits) as f32).to_bits()),
                _ => bits,
            };
            made.values.extend_from_slice(&bits.to_le_bytes()[..of.size()]);
        }
        Some(made)
    }
}

impl ColumnPlan {
    /// Returns the index of a part among the column's parts.
    fn place(&self, part: Part) -> Option<usize> {
        self.parts.iter().position(|known| *known == part)
    }

    fn merge(&self, into: &mut [u64], from: &[u64]) {
        let (before, more) = (into[0], from[0]);
        if more == 0 {
            return;
        }
        if before == 0 {
            return into.copy_from_slice(from);
        }
        // Merges the squares before the totals are added up below, because the distance between the
        // two means needs separate totals.
        if let (Some(squares), Some(total)) = (self.place(Part::Squares), self.place(Part::Total)) {
            let mean = |side: &[u64], count: u64| f64::from_bits(side[total]) / count as f64;
            let distance = mean(from, more) - mean(into, before);
            let weight = before as f64 * (more as f64 / (before + more) as f64);
            let sum = f64::from_bits(into[squares]) + f64::from_bits(from[squares]);
            into[squares] = (sum + distance * distance * weight).to_bits();
        }
        for ((part, into), from) in self.parts.iter().zip(into).zip(from) {
            *into = match part {
                Part::Count | Part::Sum => into.wrapping_add(*from),
                Part::Total => (f64::from_bits(*into) + f64::from_bits(*from)).to_bits(),
                Part::Squares => *into,
                Part::Min if self.is_less(*from, *into) => *from,
                Part::Max if self.is_less(*into, *from) => *from,
                Part::Min | Part::Max => *into,
            };
        }
    }

    fn is_less(&self, one: u64, other: u64) -> bool {
        if self.of.is_float() {
            f64::from_bits(one) < f64::from_bits(other)
        } else if self.of.is_signed() {
            (one as i64) < other as i64
        } else {
            one < other
        }
    }

    /// Returns the 8 bytes of an aggregate. Returns `Some(None)` if the group has no value for it,
    /// and `None` if the aggregate was not planned for this column.
    fn value(&self, aggregate: Aggregate, state: &[u64]) -> Option<Option<u64>> {
        let get = |part| Some(state[self.place(part)?]);
        let float = |part| get(part).map(f64::from_bits);
        let count = get(Part::Count)?;
        let sum = if self.of.is_float() { Part::Total } else { Part::Sum };
        Some(match aggregate {
            Aggregate::Count => Some(count),
            Aggregate::Sum => Some(get(sum)?),
            Aggregate::Mean => {
                (count > 0).then_some((float(Part::Total)? / count as f64).to_bits())
            }
            Aggregate::Min => (count > 0).then_some(get(Part::Min)?),
            Aggregate::Max => (count > 0).then_some(get(Part::Max)?),
            Aggregate::Std => {
                let variance = float(Part::Squares)? / count.saturating_sub(1) as f64;
                (count > 1).then_some(variance.sqrt().to_bits())
            }
        })
    }
}
