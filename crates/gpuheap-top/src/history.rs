//! Keeps the figures of the last minutes, and measures their growth.

use std::collections::VecDeque;

/// Time over which growth is measured, in seconds. Growth compares the last third of this time with
/// the first third.
pub(crate) const WINDOW: u64 = 90;

/// Minimum number of seconds that figures must cover before their growth is measured.
const LEAST: u64 = 3;

/// A figure over time, with a point for each second.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    points: VecDeque<Point>,
    /// Number of seconds whose figures are kept.
    kept: u64,
}

/// Figures of one second.
#[derive(Debug, Clone, Copy)]
struct Point {
    second: u64,
    last: u64,
    least: u64,
}

/// Growth of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Bytes by which the figure's lowest value rose from the window's first third to its last
    /// third; negative if it fell.
    pub(crate) bytes: i64,
    /// Seconds from the middle of the window's first third to the middle of its last third.
    pub(crate) seconds: u64,
}

impl Series {
    /// Returns an empty series that keeps the last `kept` seconds.
    pub(crate) fn new(kept: u64) -> Series {
        Series { points: VecDeque::new(), kept }
    }

    /// Adds a figure. Seconds never decrease.
    pub(crate) fn push(&mut self, second: u64, figure: u64) {
        match self.points.back_mut() {
            Some(point) if point.second >= second => {
                point.last = figure;
                point.least = point.least.min(figure);
            }
            _ => self.points.push_back(Point { second, last: figure, least: figure }),
        }
        while self.points.front().is_some_and(|first| first.second + self.kept < second) {
            self.points.pop_front();
        }
    }

    /// Returns the second of the last figure.
    pub(crate) fn last_second(&self) -> Option<u64> {
        self.points.back().map(|point| point.second)
    }

    /// Returns `true` if all figures are 0.
    pub(crate) fn is_zero(&self) -> bool {
        self.points.iter().all(|point| point.last == 0)
    }

    /// Returns the growth over a minute: the floor of the window's last third minus the floor of
    /// its first third. Memory that rises and falls in each step of a program does not count.
    /// Before the window is full, divides the time so far into thirds. Returns `None` if the
    /// figures cover less than three seconds.
    pub(crate) fn growth(&self) -> Option<Growth> {
        let end = self.last_second()?;
        let within = self.points.iter().filter(|point| point.second + WINDOW >= end);
        let start = within.clone().next()?.second;
        if end - start < LEAST {
            return None;
        }
        let third = (end - start) / 3;
        let floor = |from: u64, to: u64| {
            let part = within.clone().filter(|point| (from..=to).contains(&point.second));
            part.map(|point| point.least).min()
        };
        let (first, last) = (floor(start, start + third)?, floor(end - third, end)?);
        let clamp = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let seconds = end - start - third;
        Some(Growth { bytes: clamp(last) - clamp(first), seconds })
    }

    /// Returns the kept figures in at most `cells` slots of equal time, oldest first. A slot has
    /// the last figure of its time. A slot without a figure repeats the previous slot.
    pub(crate) fn slots(&self, cells: usize) -> Vec<u64> {
        let (Some(first), Some(last)) = (self.points.front(), self.points.back()) else {
            return Vec::new();
        };
        let span = last.second - first.second + 1;
        let width = span.div_ceil(cells.max(1) as u64).max(1);
        let mut slots: Vec<u64> = Vec::new();
        for point in &self.points {
            let slot = ((point.second - first.second) / width) as usize;
            while slots.len() <= slot {
                slots.push(slots.last().copied().unwrap_or(point.last));
            }
            slots[slot] = point.last;
        }
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(figures: impl IntoIterator<Item = (u64, u64)>) -> Series {
        let mut series = Series::new(300);
        figures.into_iter().for_each(|(second, figure)| series.push(second, figure));
        series
    }

    #[test]
    fn rise_of_floor_is_growth() {
        // In each second, the figure rises by 100 and falls again. Its floor rises by 1.
        let steps = (0..200).flat_map(|second| [(second, second + 100), (second, second)]);
        assert_eq!(series(steps).growth(), Some(Growth { bytes: 60, seconds: 60 }));
        let steps = (0..31).flat_map(|second| [(second, second + 100), (second, second)]);
        assert_eq!(series(steps).growth(), Some(Growth { bytes: 20, seconds: 20 }));
    }

    #[test]
    fn steady_steps_do_not_grow() {
        let steps = (0..60).flat_map(|second| [(second, 7), (second, 500), (second, 7)]);
        assert_eq!(series(steps).growth().map(|growth| growth.bytes), Some(0));
    }

    #[test]
    fn growth_needs_three_seconds() {
        assert_eq!(series([]).growth(), None);
        assert_eq!(series([(5, 1), (7, 9)]).growth(), None);
        assert_eq!(series([(5, 1), (8, 9)]).growth(), Some(Growth { bytes: 8, seconds: 2 }));
    }

    #[test]
    fn growth_ignores_earlier_minutes() {
        let rose = (0..200).map(|second| (second, second.min(109)));
        assert_eq!(series(rose).growth().map(|growth| growth.bytes), Some(0));
    }

    #[test]
    fn old_figures_are_dropped() {
        let mut series = Series::new(10);
        (0..100).for_each(|second| series.push(second, second));
        assert_eq!(series.points.len(), 11);
    }

    #[test]
    fn slots_fill_gaps() {
        assert_eq!(series([(0, 1), (3, 4)]).slots(10), [1, 1, 1, 4]);
        assert_eq!(series((0..100).map(|second| (second, second))).slots(4), [24, 49, 74, 99]);
        assert_eq!(series([]).slots(4), [0; 0]);
    }
}
