//! Collects samples of metrics, and encodes them.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::exemplar::Exemplar;

use super::metric::{Metric, Shape};

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(i64),
    Seconds(f64),
}

#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<Metric, BTreeMap<Labels, Value>>);

/// Returns `labels` followed by `more`.
pub(super) fn and<const N: usize>(labels: &Labels, more: [(&'static str, String); N]) -> Labels {
    labels.iter().cloned().chain(more).collect()
}

impl Samples {
    /// Adds a value to a sample. If two programs have the same labels, their sample is the sum of
    /// both.
    pub(super) fn add(&mut self, metric: Metric, labels: Labels, value: u64) {
        self.add_signed(metric, labels, i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(super) fn add_signed(&mut self, metric: Metric, labels: Labels, value: i64) {
        let sample = self.0.entry(metric).or_default().entry(labels).or_insert(Value::Whole(0));
        if let Value::Whole(sum) = sample {
            *sum = sum.saturating_add(value);
        }
    }

    /// Sets the sample of a metric without labels.
    pub(super) fn set(&mut self, metric: Metric, value: Value) {
        self.0.entry(metric).or_default().insert(Labels::new(), value);
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, samples) in &self.0 {
            let (name, help, shape) = (metric.name(), metric.help(), metric.shape());
            let (kind, unit, _) = shape.definition();
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (labels, value) in samples {
                match (shape, value) {
                    (Shape::Info, _) => family.encode_info(labels)?,
                    (Shape::Counter, Value::Whole(count)) => {
                        let count = u64::try_from(*count).unwrap_or(0);
                        let exemplar = None::<&Exemplar<Labels, u64>>;
                        family.encode_family(labels)?.encode_counter(&count, exemplar)?;
                    }
                    (_, Value::Whole(number)) => {
                        family.encode_family(labels)?.encode_gauge(number)?;
                    }
                    (_, Value::Seconds(seconds)) => {
                        family.encode_family(labels)?.encode_gauge(seconds)?;
                    }
                }
            }
        }
        Ok(())
    }
}
