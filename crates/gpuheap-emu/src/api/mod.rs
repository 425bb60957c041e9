//! The driver API, by area: one method of [`Call`](crate::emulator::Call) for each function of the
//! table.
#![allow(non_snake_case)]

mod capture;
mod changes;
mod checkpoint;
mod context;
mod copy;
mod device;
mod event;
mod fill;
mod function;
mod general;
mod launch;
mod managed;
mod memory;
mod module;
mod pinned;
mod pointer;
mod pool;
mod pool_places;
mod stream;
mod vmm;
mod work;
