// Applies the chosen color theme before the first paint; therefore this is a script, not a module.
document.documentElement.dataset.theme = localStorage.getItem("findings:theme") ?? "system";
