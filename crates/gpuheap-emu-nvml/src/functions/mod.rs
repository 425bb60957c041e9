//! Exported functions, one table for each subject.

mod figures;
mod identity;
mod instances;
mod links;
mod memory;
mod system;

/// Returns `true` if a function of this name is exported.
pub(crate) fn is_served(symbol: &str) -> bool {
    let tables = [
        system::SYMBOLS,
        identity::SYMBOLS,
        memory::SYMBOLS,
        figures::SYMBOLS,
        instances::SYMBOLS,
        links::SYMBOLS,
    ];
    tables.iter().any(|table| table.contains(&symbol))
}
