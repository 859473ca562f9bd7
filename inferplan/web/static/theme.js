// Before anything is drawn: the scheme that was chosen here before; without a choice that of the system.
{
  const chosen = localStorage.getItem("inferplan-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
