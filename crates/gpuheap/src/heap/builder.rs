//! What a heap is made of.

use std::sync::{Arc, OnceLock};

use crate::device::{Context, Device};
use crate::error::{Error, ErrorKind};
use crate::heap::limits::Limits;
use crate::heap::reclaimers::Reclaimers;
use crate::heap::registrations::Registrations;
use crate::heap::store::Store;
use crate::heap::{Heap, Inner};
use crate::kind::MemoryKind;
use crate::pool::{Binned, Direct, Policy, PoolKind, Simple, Split};
use crate::source::{MemorySource, OrderedSource, PlainSource};

/// Chooses what a heap is made of.
#[derive(Clone, Debug)]
pub struct HeapBuilder {
    device: Device,
    pool: Option<PoolKind>,
    limits: Limits,
    pinned_limit: Option<u64>,
    zero_on_free: Option<bool>,
    zero_on_alloc: Option<bool>,
}

impl HeapBuilder {
    pub(crate) fn new(device: &Device) -> HeapBuilder {
        HeapBuilder {
            device: device.clone(),
            pool: None,
            limits: Limits::default(),
            pinned_limit: None,
            zero_on_free: None,
            zero_on_alloc: None,
        }
    }

    /// The policy; `split` unless said otherwise.
    pub fn pool(mut self, pool: PoolKind) -> HeapBuilder {
        self.pool = Some(pool);
        self
    }

    /// Bytes never to be exceeded by what is taken from the driver of the device's memory.
    pub fn hard_limit(mut self, bytes: u64) -> HeapBuilder {
        self.limits.hard = Some(bytes);
        self
    }

    /// Bytes above which cached memory is given back at the next call that finds it out of use.
    pub fn soft_limit(mut self, bytes: u64) -> HeapBuilder {
        self.limits.soft = Some(bytes);
        self
    }

    /// Bytes never to be exceeded by pinned memory of the host.
    pub fn pinned_limit(mut self, bytes: u64) -> HeapBuilder {
        self.pinned_limit = Some(bytes);
        self
    }

    /// Whether what is freed is filled with zeros, its rounding included, before anything else can
    /// have it. For data that must not be read by the next tenant.
    pub fn zero_on_free(mut self, zero: bool) -> HeapBuilder {
        self.zero_on_free = Some(zero);
        self
    }

    /// Whether what is allocated is filled with zeros, its rounding included.
    pub fn zero_on_alloc(mut self, zero: bool) -> HeapBuilder {
        self.zero_on_alloc = Some(zero);
        self
    }

    /// Makes the heap. Takes no memory yet.
    ///
    /// # Errors
    ///
    /// `driver` on a device without stream-ordered pools; the driver's own.
    pub fn build(self) -> Result<Heap, Error> {
        let context = self.device.context().clone();
        let pool = self.pool.unwrap_or(PoolKind::Split);
        let ordered = |keeps| -> Result<(Box<dyn Policy>, Box<dyn MemorySource>), Error> {
            let source = OrderedSource::new(context.clone(), keeps, self.limits)?;
            Ok((Box::new(Direct::default()), Box::new(source)))
        };
        let parts = match pool {
            PoolKind::None if context.has_pools() => ordered(false)?,
            PoolKind::Driver if context.has_pools() => ordered(true)?,
            PoolKind::Driver => {
                return Err(ErrorKind::Refused(format!(
                    "{} has no stream-ordered pools; use the split pool",
                    self.device
                ))
                .into());
            }
            pool => policy_and_source(&context, MemoryKind::Device, pool),
        };
        Ok(self.build_over(pool, parts.0, parts.1))
    }

    pub(crate) fn build_over(
        self,
        pool: PoolKind,
        policy: Box<dyn Policy>,
        source: Box<dyn MemorySource>,
    ) -> Heap {
        let context = self.device.context().clone();
        let reclaimers = Arc::new(Reclaimers::default());
        let device = Store::new(
            context.clone(),
            MemoryKind::Device,
            pool,
            self.limits,
            reclaimers.clone(),
            (policy, source),
        );
        Heap {
            inner: Arc::new(Inner {
                context,
                pool,
                device,
                unified: OnceLock::new(),
                pinned: OnceLock::new(),
                stream: OnceLock::new(),
                pinned_limit: self.pinned_limit,
                registered: Registrations::default(),
                reclaimers,
                zero_on_free: self.zero_on_free.unwrap_or(false),
                zero_on_alloc: self.zero_on_alloc.unwrap_or(false),
            }),
        }
    }
}

/// A policy over plain allocations of a kind. Only device memory has stream-ordered pools of the
/// driver's, so a `driver` heap keeps its other kinds by `split`.
pub(crate) fn policy_and_source(
    context: &Arc<Context>,
    kind: MemoryKind,
    pool: PoolKind,
) -> (Box<dyn Policy>, Box<dyn MemorySource>) {
    let policy: Box<dyn Policy> = match pool {
        PoolKind::None => Box::new(Direct::default()),
        PoolKind::Simple => Box::new(Simple::default()),
        PoolKind::Binned => Box::new(Binned::default()),
        PoolKind::Split | PoolKind::Driver => Box::new(Split::default()),
    };
    (policy, Box::new(PlainSource::new(context.clone(), kind)))
}
