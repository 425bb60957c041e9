//! Converts times of day, without dates, to the time since the first row.

const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;
/// If the time of day goes back by at least this much, midnight has passed. A smaller step comes
/// from a clock set back (an hour in autumn), or from rows out of order. With two hours, midnight
/// is recognised even after 22 hours without a row.
const MIDNIGHT_US: u64 = 2 * 60 * 60 * 1_000_000;

/// Clock that converts times of day to nanoseconds since the first time of day that it received. It
/// counts the midnights in between.
#[derive(Debug, Default)]
pub(super) struct Clock {
    days: u64,
    first_us: Option<u64>,
    previous_us: u64,
}

impl Clock {
    /// Returns nanoseconds since the first call. The result may step back a little if the log does.
    pub(super) fn elapsed_ns(&mut self, time_of_day_us: u64) -> u64 {
        let first_us = *self.first_us.get_or_insert(time_of_day_us);
        let mut days = self.days;
        if time_of_day_us.saturating_add(MIDNIGHT_US) < self.previous_us {
            days = days.saturating_add(1);
        } else if days > 0 && time_of_day_us > self.previous_us + (DAY_US - MIDNIGHT_US) {
            // The row was logged before midnight, but follows another thread's row from after
            // midnight. So it belongs to the day before.
            return Self::since(first_us, days - 1, time_of_day_us);
        }
        self.days = days;
        self.previous_us = time_of_day_us;
        Self::since(first_us, days, time_of_day_us)
    }

    fn since(first_us: u64, days: u64, time_of_day_us: u64) -> u64 {
        days.saturating_mul(DAY_US)
            .saturating_add(time_of_day_us)
            .saturating_sub(first_us)
            .saturating_mul(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;
    const HOUR_US: u64 = 3600 * SECOND_US;

    fn elapsed_s(times_us: &[u64]) -> Vec<u64> {
        let mut clock = Clock::default();
        times_us.iter().map(|&time| clock.elapsed_ns(time) / 1_000_000_000).collect()
    }

    #[test]
    fn midnight_starts_the_next_day() {
        let times = [DAY_US - SECOND_US, SECOND_US, HOUR_US, DAY_US - SECOND_US, 0];
        // Midnight passes before 0:00:01, and in the second list before 9:00 and before 0:00.
        assert_eq!(elapsed_s(&times[..3]), [0, 2, 3601]);
        assert_eq!(
            elapsed_s(&[18 * HOUR_US, 9 * HOUR_US, 18 * HOUR_US, 0]),
            [0, 54000, 86400, 108_000]
        );
    }

    #[test]
    fn late_row_adds_no_day() {
        let times = [DAY_US - 2 * SECOND_US, SECOND_US, DAY_US - SECOND_US, 2 * SECOND_US];
        assert_eq!(elapsed_s(&times), [0, 3, 1, 4]);
    }

    #[test]
    fn hour_back_is_no_midnight() {
        assert_eq!(elapsed_s(&[3 * HOUR_US, 2 * HOUR_US, 4 * HOUR_US]), [0, 0, 3600]);
    }
}
